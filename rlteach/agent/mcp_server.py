"""The search tool as an MCP server (extra `mcp`), and a tool of an MCP server as a plain function.

    python -m rlteach.agent.mcp_server        serves web_search over standard input and output

`tool_of(client, "web_search")` has the signature of rlteach.agent.search.web_search, so one plug-in
works with either: in one process, through a pipe, or with somebody else's server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field

from rlteach.agent.search import SEARCH_TOOL, SearchError, web_search

_FIELDS = SEARCH_TOOL["function"]["parameters"]["properties"]
_Query = Annotated[str, Field(description=_FIELDS["Query"]["description"], min_length=1)]
_Count = Annotated[int, Field(description=_FIELDS["Count"]["description"], strict=True, ge=1,
                              le=_FIELDS["Count"]["maximum"])]
INSTALL = "the MCP server needs the official SDK: pip install 'rlteach[mcp]'"


class ToolError(RuntimeError):
    """What an MCP server said of a call that failed."""


def build_server() -> Any:
    """An `mcp.server.MCPServer` with the one tool `web_search`.

    Raises:
        ImportError: the SDK is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError as Refused
    except ImportError as error:
        raise ImportError(INSTALL) from error
    server = MCPServer("rlteach-search")

    async def search(Query: _Query, Count: _Count = 10) -> dict[str, Any]:  # noqa: N803
        try:
            return await web_search(Query, Count)
        except SearchError as error:
            raise Refused(str(error)) from None

    function = SEARCH_TOOL["function"]
    server.add_tool(search, name=function["name"], description=function["description"])
    return server


def tool_of(client: Any, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
    """A tool of a connected `mcp.Client` as an async function of keyword arguments that returns an object.

    Raises (when it is called):
        ToolError: the server refused the call, or gave no JSON object.
    """
    async def call(*values: Any, **arguments: Any) -> dict[str, Any]:
        arguments.update(zip(("Query", "Count"), values, strict=False))
        result = await client.call_tool(name, arguments)
        text = "".join(getattr(part, "text", "") for part in result.content)
        if result.is_error:
            raise ToolError(f"the tool {name} failed: {text or 'no reason given'}")
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ToolError(f"the tool {name} gave no JSON object: {text[:200]!r}")
        return data

    call.__name__ = name
    return call


if __name__ == "__main__":
    build_server().run()
