"""Requests of coding agents (Claude Code, Codex), rebuilt from recorded sessions: each turn sends the whole session so
far, and fields that the agent varies per turn vary here too."""

from __future__ import annotations

import json
from typing import Any

TURNS = 20
# As long as a real agent's instructions: thousands of words.
RULES = "\n".join(
    f"{number}. Read a file before you change it; rule {number} of the house holds." for number in range(60)
)
COMMAND = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command to run"},
        "timeout": {"type": "number", "description": "In milliseconds"},
    },
    "required": ["command"],
    "additionalProperties": False,
}


def listing(turn: int) -> str:
    return f"src/part_{turn}.py\nsrc/test_part_{turn}.py\nREADME.md\n"


# --- Claude Code, through Messages


def claude_code(model: str, turn: int) -> dict[str, Any]:
    mark = {"cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"},
                {"type": "text", "text": "Tidy up the parts."},
            ],
        }
    ]
    for number in range(turn):
        use = f"toolu_{number:02}"
        messages += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": f"Part {number} is next.", "signature": ""},
                    {"type": "text", "text": f"I look at part {number}."},
                    {"type": "tool_use", "id": use, "name": "Bash", "input": {"command": f"ls src/part_{number}*"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use, "content": listing(number)}]},
        ]
        if number % 7 == 6:
            messages.append({"role": "system", "content": "The user has opened another file."})
    for message in messages[-2:]:  # the marks go with the end of the conversation
        if isinstance(message["content"], list):
            message["content"][-1] |= mark
    return {
        "model": model,
        "max_tokens": 1,
        "stream": True,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.177.01c; cch={turn * 7919:05x};"},
            {"type": "text", "text": "You are an agent for code.", **mark},
            {"type": "text", "text": RULES, **mark},
        ],
        "tools": [
            {"name": "Bash", "description": "Runs a command.", "input_schema": COMMAND, "eager_input_streaming": True},
            {"name": "Write", "description": "Writes a file.", "input_schema": {"type": "object"}, **mark},
        ],
        "messages": messages,
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "session_id": "s" * 36})},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


# --- Codex, through Responses


def codex(model: str, turn: int, thoughts: str = "penstock-1:UGFydCBuZXh0Lg==") -> dict[str, Any]:
    """`thoughts`: what came as `encrypted_content`, and all that Codex sends back of them."""

    def say(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    items = [
        say("developer", "<permissions instructions>Write where you like.</permissions instructions>"),
        say("user", "<environment_context>\n  <cwd>/src</cwd>\n</environment_context>"),
        say("user", "Tidy up the parts."),
    ]
    for number in range(turn):
        call, command = f"call_{number:02}", json.dumps({"command": f"ls src/part_{number}*"})
        items.append({"type": "reasoning", "summary": [], "content": None, "encrypted_content": thoughts})
        if number % 5 == 4:
            items += [
                {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "parts"}},
                {
                    "type": "custom_tool_call",
                    "status": "completed",
                    "call_id": call,
                    "name": "apply_patch",
                    "input": "***",
                },
                {"type": "custom_tool_call_output", "call_id": call, "output": "Done!"},
            ]
        else:
            items += [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": f"I look at part {number}."}],
                    "phase": "commentary",
                },
                {"type": "function_call", "name": "exec_command", "arguments": command, "call_id": call},
                {
                    "type": "function_call_output",
                    "call_id": call,
                    "output": [{"type": "input_text", "text": listing(number)}],
                },
            ]
    return {
        "model": model,
        "instructions": RULES,
        "input": items,
        "tools": [
            {
                "type": "function",
                "name": "exec_command",
                "description": "Runs it.",
                "strict": False,
                "parameters": COMMAND,
            },
            {
                "type": "custom",
                "name": "apply_patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
            },
            {"type": "web_search", "external_web_access": False},
            {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": []},
            {"type": "image_generation", "output_format": "png"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0198-session",
        "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": f"0198-{turn}"},
        "max_output_tokens": 1,
    }
