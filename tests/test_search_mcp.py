"""The search tool as an MCP server: the same answers, the same refusals, through the official SDK."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from rlteach.agent import mcp_server
from rlteach.agent.search import SEARCH_TOOL, web_search

mcp = pytest.importorskip("mcp", minversion=None, reason="the MCP SDK is not installed (extra [mcp])")


async def plug_in(search: Any) -> list[str]:
    """The core of a search plug-in: it knows nothing of where its tool lives."""
    found = await search(Query="Vuka", Count=2)
    return [page["Title"] for page in found["Result"]["WebResults"]] or ["nothing"]


def through_server(body: Any) -> Any:
    async def run() -> Any:
        async with mcp.Client(mcp_server.build_server()) as client:
            return await body(client)
    return asyncio.run(run())


def test_one_plug_in_works_with_the_function_and_with_the_server() -> None:
    async def body(client: Any) -> Any:
        tool = mcp_server.tool_of(client, "web_search")
        return [await plug_in(tool), await tool("杨", 3), await tool(Query="杨")]

    assert through_server(body) == [asyncio.run(plug_in(web_search)), asyncio.run(web_search("杨", 3)),
                                    asyncio.run(web_search("杨"))]


def test_the_server_lists_the_tool_with_its_arguments() -> None:
    async def body(client: Any) -> Any:
        return (await client.list_tools()).tools

    tools = through_server(body)
    wanted = SEARCH_TOOL["function"]
    assert [tool.name for tool in tools] == [wanted["name"]]
    assert tools[0].description == wanted["description"]
    schema = tools[0].input_schema
    assert set(schema["properties"]) == set(wanted["parameters"]["properties"])
    assert schema["required"] == ["Query"]
    assert schema["properties"]["Count"]["default"] == 10


@pytest.mark.parametrize(("arguments", "said"), [
    ({"Query": ""}, "Query"), ({"Query": " "}, "Query must be"), ({"Query": "Vuka", "Count": 0}, "Count"),
    ({}, "Query"), ({"Query": "Vuka", "Count": "3"}, "Count"), ({"Query": 5}, "Query"),
])
def test_a_refusal_comes_back_with_its_reason(arguments: dict[str, Any], said: str) -> None:
    async def body(client: Any) -> Any:
        with pytest.raises(mcp_server.ToolError, match=said):
            await mcp_server.tool_of(client, "web_search")(**arguments)
        return True

    assert through_server(body)


def test_another_server_s_text_is_no_object() -> None:
    async def body() -> Any:
        server = mcp.server.MCPServer("other")

        async def web_search(Query: str) -> str:  # noqa: N803
            return "plain words"

        server.add_tool(web_search)
        async with mcp.Client(server) as client:
            with pytest.raises(mcp_server.ToolError, match="gave no JSON object"):
                await mcp_server.tool_of(client, "web_search")(Query="x")
            return True

    assert asyncio.run(body())


def test_it_serves_over_a_pipe() -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def body() -> Any:
        command = StdioServerParameters(command=sys.executable, args=["-m", "rlteach.agent.mcp_server"])
        async with mcp.Client(stdio_client(command)) as client:
            return await plug_in(mcp_server.tool_of(client, "web_search"))

    assert asyncio.run(asyncio.wait_for(body(), 120)) == asyncio.run(plug_in(web_search))
