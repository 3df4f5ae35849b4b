local M = {}
function M.measure() end
return M
