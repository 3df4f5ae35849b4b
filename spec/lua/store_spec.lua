-- SPDX-License-Identifier: Apache-2.0
-- A file of SQLite's: what it says when it fails, and whose locks it leaves.
local cases = require "spec.support.cases"

describe("a store", function()
  if not package.searchpath("perigee.control", package.cpath) then
    it("is there", function() pending "perigee/control.so is missing" end)
    return
  end

  local stores = require "perigee.net.store"
  local path, store

  before_each(function()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    path = cases.folder .. "/store.db"
    store = assert(stores.open(path))
    assert(store:run "CREATE TABLE things (name TEXT PRIMARY KEY)")
  end)
  after_each(function()
    store:close()
    cases.cleanup()
  end)

  it("says why a statement failed, and not why another did", function()
    assert.is_nil((store:run "nonsense"))
    local add = assert(store:prepare "INSERT INTO things VALUES (?1)")
    assert.is_true(add:run "one")
    local none, _, why = add:run "one"
    assert.is_nil(none)
    assert.matches("store.db: UNIQUE constraint failed: things.name", why, 1,
                   true)
    assert.is_true(add:run "two")
  end)

  it("has one owner, who is told to others", function()
    local other = assert(stores.open(path))
    assert.is_true(store:own())
    local none, kind, why = other:own()
    assert.is_nil(none)
    assert.equal("name_taken", kind)
    assert.matches("another process serves it", why, 1, true)
    other:close()
  end)

  -- A process that closes the file as the last one removes the log, to which
  -- the store would go on writing.
  it("keeps its locks while another store of its process comes and goes",
     function()
    stores.open(path):close()
    assert.equal(0, os.execute(([[luajit -e '
      local store = assert(require "perigee.net.store".open "%s")
      store:close()']]):format(path)))
    assert(io.open(path .. "-wal")):close()
  end)

  it("is not there where it cannot be", function()
    assert.is_nil((stores.open(cases.folder)))
    assert.is_nil((stores.open(cases.folder .. "/none/store.db")))
  end)
end)
