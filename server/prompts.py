"""From a request's prompt to tokens, a piece at a time, refused by its size before any work is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rondel.decoder.errors import InvalidRequest, LengthExceeded
from rondel.decoder.lm.chat import MAX_MESSAGES
from rondel.decoder.lm.forward import LanguageModel
from rondel.v1 import generation_pb2 as pb

_ROLES: Final = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant"}


def prompt_pieces(request: pb.GenerateRequest, model: LanguageModel) -> Iterator[list[int]]:
    """The prompt's tokens. What takes long happens between two pieces.

    Raises:
        InvalidRequest: the prompt is missing or malformed.
        LengthExceeded: it has more tokens than the model's context, which is seen no later than at the piece
            that is too many.
    """
    room = model.context_length
    count = 0
    for piece in _pieces(request, model, room):
        count += len(piece)
        if count > room:
            raise LengthExceeded(
                f"the prompt has at least {count} tokens, the model's context is {room}", limit=room
            )
        yield piece
    if not count:
        raise InvalidRequest("the prompt has no tokens", field="prompt")


def _pieces(request: pb.GenerateRequest, model: LanguageModel, room: int) -> Iterator[list[int]]:
    match request.WhichOneof("prompt"):
        case "text":
            model.tokenizer.check_size([request.text], room)
            return model.tokenizer.pieces(request.text)
        case "chat":
            count = len(request.chat.messages)
            if not 1 <= count <= MAX_MESSAGES:
                raise InvalidRequest(
                    f"a chat has 1 to {MAX_MESSAGES} messages, got {count}", field="messages"
                )
            messages = [_message(message) for message in request.chat.messages]
            model.tokenizer.check_size((message["content"] for message in messages), room)
            return model.tokenizer.chat_pieces(messages)
        case "tokens":
            count = len(request.tokens.ids)
            if count > room:
                raise LengthExceeded(
                    f"the prompt has {count} tokens, the model's context is {room}", limit=room
                )
            return iter([list(request.tokens.ids)])
        case _:
            raise InvalidRequest("the prompt is missing", field="prompt")


def _message(message: pb.ChatMessage) -> dict[str, str]:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"a message's role must be set, got number {message.role}", field="role")
    return {"role": role, "content": message.content}
