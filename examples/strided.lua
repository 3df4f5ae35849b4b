-- SPDX-License-Identifier: Apache-2.0
-- Strided transfers: a slice has a shape, so one descriptor stands for a
-- column of a matrix or for one head of a KV block.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local ROWS, COLUMNS = 1000, 64
local FLOAT = 4
local LENGTH = ROWS * COLUMNS * FLOAT
local f32 = ffi.typeof("float *")

local function worker()
  local engine = perigee.engine {}
  local region = engine:alloc(LENGTH, { name = "matrix", access = "rw" })
  local matrix = ffi.cast(f32, region:slice(0, LENGTH).pointer)
  for row = 0, ROWS - 1 do
    for column = 0, COLUMNS - 1 do
      matrix[row * COLUMNS + column] = row * 100 + column
    end
  end
  local listener = assert(engine:listen(common.address()))
  common.ready()
  assert(listener:accept(10))
end

-- Returns column n of the matrix: one float of every row.
local function column(region, n)
  return region:slice(n * FLOAT, FLOAT,
                      { count = ROWS, stride = COLUMNS * FLOAT })
end

local function driver()
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local matrix = assert(session:region("matrix"))
  local here = engine:alloc(LENGTH)
  local floats = ffi.cast(f32, here:slice(0, LENGTH).pointer)

  local packed = here:slice(0, ROWS * FLOAT)
  assert(column(matrix, 7).length == packed.length)
  assert(session:read { from = column(matrix, 7), to = packed }:wait(1))
  for row = 0, ROWS - 1 do assert(floats[row] == row * 100 + 7) end
  print(("read column 7 of a %d x %d matrix into %d bytes, checked")
    :format(ROWS, COLUMNS, packed.length))

  -- Shapes may differ as long as the totals are equal: packed floats to a
  -- column.
  for row = 0, ROWS - 1 do floats[row] = -row end
  assert(session:write { from = packed, to = column(matrix, 9) }:wait(1))
  assert(session:read { from = matrix:slice(0, LENGTH),
                        to = here:slice(0, LENGTH) }:wait(1))
  for row = 0, ROWS - 1 do
    for n = 0, COLUMNS - 1 do
      local want = n == 9 and -row or row * 100 + n
      assert(floats[row * COLUMNS + n] == want, "a wrong element")
    end
  end
  print("wrote column 9 and nothing beside it")
  engine:close()
end

common.main(driver, { worker = worker }, { "worker" })
