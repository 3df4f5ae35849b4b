# SPDX-License-Identifier: Apache-2.0
"""What schemathesis cannot know: a stream of events has no end by itself, so
each one is asked for no longer than a moment."""
import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path.endswith("/watch") and "for" not in (case.query or {}):
        case.query = {**(case.query or {}), "for": 0}


@schemathesis.hook
def map_query(context, query):
    if query and isinstance(query.get("for"), (int, float)):
        query["for"] = min(query["for"], 0.1)
    return query
