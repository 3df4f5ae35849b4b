-- SPDX-License-Identifier: Apache-2.0
--- The version of Perigee, as https://semver.org means it; CHANGELOG.md tells
-- what each brought. The one place where it stands.
return "0.1.0"
