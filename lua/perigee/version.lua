-- SPDX-License-Identifier: Apache-2.0
--- The version of Perigee (https://semver.org); CHANGELOG.md lists the changes
-- of each. It is defined only here.
return "0.1.0"
