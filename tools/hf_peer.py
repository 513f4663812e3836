"""The other side of tools/hf_parity.py, run by an interpreter with transformers 4.57: makes random
checkpoints and says what they give.

    python hf_peer.py SPECS.json FOLDER        a case for each spec, as FOLDER/000, FOLDER/001 …

A case is a folder: `spec.json`, one checkpoint each of scorer, encoder, reader and open QA, `inputs.json` and
`outputs.safetensors`. B queries, C candidates each (the last one empty: no retrieval), K passages read, S
spans.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import logging
from transformers.models.deprecated.realm import (
    RealmConfig,
    RealmForOpenQA,
    RealmKnowledgeAugEncoder,
    RealmReader,
    RealmRetriever,
    RealmScorer,
    RealmTokenizerFast,
)

QUERIES = 3


def main() -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    for number, spec in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        make_case(spec, Path(sys.argv[2]) / f"{number:03d}")


def make_case(spec: dict[str, Any], folder: Path) -> None:
    torch.manual_seed(spec["seed"])
    talk = random.Random(spec["seed"])
    folder.mkdir(parents=True)
    words = write_vocabulary(folder / "vocab.txt", spec["vocab"], talk)
    tokenizer = RealmTokenizerFast(str(folder / "vocab.txt"))
    blocks = [sentence(words, talk, 4, 3 * spec["passage"] // 2) for _ in range(spec["blocks"])]
    config = RealmConfig(
        vocab_size=len(tokenizer),
        hidden_size=spec["hidden"],
        num_hidden_layers=spec["layers"],
        num_attention_heads=spec["heads"],
        intermediate_size=2 * spec["hidden"],
        retriever_proj_size=spec["projection"],
        num_candidates=spec["candidates"],
        max_position_embeddings=spec["positions"],
        reader_seq_len=spec["positions"] - 8,
        span_hidden_size=spec["projection"],
        max_span_width=spec["width"],
        reader_beam_size=min(5, spec["blocks"]),
        num_block_records=len(blocks),
    )
    inputs: dict[str, Any] = {}
    outputs: dict[str, torch.Tensor] = {}
    pretraining(config, tokenizer, words, talk, spec, folder, inputs, outputs)
    reading(config, tokenizer, words, talk, spec, folder, inputs, outputs)
    answering(config, tokenizer, words, blocks, talk, folder, inputs)
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "inputs.json").write_text(json.dumps(inputs))
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in outputs.items()},
        folder / "outputs.safetensors",
    )


def write_vocabulary(file: Path, size: int, talk: random.Random) -> list[str]:
    """Made-up words, some of two pieces."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    whole = [first + second for first in syllables for second in syllables]
    talk.shuffle(whole)
    pieces = whole[: size - 5 - 20]
    endings = syllables[:20]
    file.write_text(
        "\n".join(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *(f"##{ending}" for ending in endings)]
        )
        + "\n"
    )
    return pieces + [talk.choice(pieces) + talk.choice(endings) for _ in range(len(pieces) // 3)]


def sentence(words: list[str], talk: random.Random, shortest: int, longest: int) -> str:
    return " ".join(talk.choice(words) for _ in range(talk.randint(shortest, max(shortest, longest))))


def randomised(model: Any) -> Any:
    """Every weight away from its initial value, also the biases and norms, which would be 0 and 1."""
    for name, parameter in model.named_parameters():
        around = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        spread = 0.1 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        parameter.data = around + spread * torch.randn_like(parameter)
    model.tie_weights()
    return model.eval()


def saved(model: Any, tokenizer: Any, folder: Path) -> Any:
    model.save_pretrained(folder, safe_serialization=isinstance(model, RealmKnowledgeAugEncoder))
    tokenizer.save_pretrained(folder)
    return model


def gradients(model: torch.nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    return {f"gradient/{prefix}/{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}


def pretraining(config, tokenizer, words, talk, spec, folder, inputs, outputs) -> None:  # type: ignore[no-untyped-def]
    """Embeddings, scores, masked-LM probabilities with and without a passage, the per-token marginal and its
    gradients."""
    scorer = saved(randomised(RealmScorer(config)), tokenizer, folder / "scorer")
    encoder = saved(randomised(RealmKnowledgeAugEncoder(config)), tokenizer, folder / "encoder")
    queries = []
    positions = []
    targets = []
    for _ in range(QUERIES):
        ids = tokenizer.encode(sentence(words, talk, 6, 12), add_special_tokens=False)[:16]
        chosen = sorted(talk.sample(range(len(ids)), talk.randint(1, 3)))
        positions.append(chosen)
        targets.append([ids[place] for place in chosen])
        queries.append(
            [tokenizer.mask_token_id if place in chosen else number for place, number in enumerate(ids)]
        )
    titles = [[sentence(words, talk, 1, 3) for _ in range(spec["candidates"] - 1)] + [""] for _ in queries]
    bodies = [
        [sentence(words, talk, 4, spec["passage"]) for _ in range(spec["candidates"] - 1)] + [""]
        for _ in queries
    ]
    ids = [tokenizer.encode(text, add_special_tokens=False) for row in titles for text in row]
    contents = [
        tokenizer.encode(text, add_special_tokens=False)[: spec["passage"]] for row in bodies for text in row
    ]
    query = pad(tokenizer, [(ids, None) for ids in queries])
    documents = pad(tokenizer, list(zip(ids, contents, strict=True)))
    scores = scorer(
        **query,
        **{
            f"candidate_{name}": tensor.view(QUERIES, -1, tensor.shape[1])
            for name, tensor in documents.items()
        },
    )
    many = spec["candidates"]
    joint = pad(tokenizer, [(queries[n // many], contents[n]) for n in range(QUERIES * many)])
    labels = torch.zeros(QUERIES, joint["input_ids"].shape[1], dtype=torch.long)
    mask = torch.zeros_like(labels)
    for row, (places, hidden) in enumerate(zip(positions, targets, strict=True)):
        labels[row, [place + 1 for place in places]] = torch.tensor(hidden)
        mask[row, [place + 1 for place in places]] = 1
    folded = {name: tensor.view(QUERIES, many, -1) for name, tensor in joint.items()}
    result = encoder(**folded, relevance_score=scores.relevance_score, labels=labels, mlm_mask=mask)
    result.loss.backward()
    log_p = result.logits.log_softmax(-1).view(QUERIES, many, joint["input_ids"].shape[1], -1)
    token = torch.full((QUERIES, many, max(map(len, positions))), 0.0)
    for row, (places, hidden) in enumerate(zip(positions, targets, strict=True)):
        for column, (place, target) in enumerate(zip(places, hidden, strict=True)):
            token[row, :, column] = log_p[row, :, place + 1, target]
    inputs["pretraining"] = {
        "queries": queries,
        "positions": positions,
        "targets": targets,
        "titles": ids,
        "bodies": contents,
    }
    outputs |= {
        "query": scores.query_score,
        "documents": scores.candidate_score,
        "relevance": scores.relevance_score,
    }
    outputs |= {"token": token, "marginal_loss": result.loss}
    outputs |= gradients(scorer, "scorer") | gradients(encoder, "encoder")


def pad(tokenizer: Any, pairs: list[tuple[list[int], list[int] | None]]) -> dict[str, torch.Tensor]:
    built = [tokenizer.prepare_for_model(first, second) for first, second in pairs]
    return dict(tokenizer.pad(built, return_tensors="pt"))


def reading(config, tokenizer, words, talk, spec, folder, inputs, outputs) -> None:  # type: ignore[no-untyped-def]
    """Span scores, and both losses with several gold spans, with one, with none."""
    reader = saved(randomised(RealmReader(config)), tokenizer, folder / "reader")
    beam = config.reader_beam_size
    searched = config.reader_beam_size + 4
    question = tokenizer.encode(sentence(words, talk, 3, 8), add_special_tokens=False)[:12]
    bodies = [
        tokenizer.encode(sentence(words, talk, 12, spec["passage"]), add_special_tokens=False)[
            : spec["passage"]
        ]
        for _ in range(beam)
    ]
    joint = pad(tokenizer, [(question, body) for body in bodies])
    special = joint["input_ids"] == tokenizer.sep_token_id
    block_mask = joint["token_type_ids"].bool() & ~special & joint["attention_mask"].bool()
    relevance = torch.randn(searched, requires_grad=True)
    spans = []
    for body in bodies:
        starts = talk.sample(range(len(body) - 2), 2)
        spans.append(
            [(start, min(start + talk.randint(0, spec["width"] - 1), len(body) - 1)) for start in starts]
        )
    first = len(question) + 2
    kept: list[torch.Tensor] = []
    handle = reader.qa_outputs.register_forward_hook(
        lambda _, __, output: kept.append(output[0].detach().clone())
    )
    cases = {
        "several": [spans[0], [], spans[2 % beam]] + [[]] * (beam - 3),
        "one": [spans[0][:1]] + [[]] * (beam - 1),
        "none": [[]] * beam,
    }
    for name, gold in cases.items():
        gold = gold[:beam]
        most = max(1, *(len(row) for row in gold))
        start = torch.tensor([[s + first for s, _ in row] + [-1] * (most - len(row)) for row in gold])
        end = torch.tensor([[e + first for _, e in row] + [-1] * (most - len(row)) for row in gold])
        holds = [bool(row) for row in gold] + [name == "several"] * (searched - beam)
        reader.zero_grad()
        relevance.grad = None
        result = reader(
            **joint,
            relevance_score=relevance,
            block_mask=block_mask,
            start_positions=start,
            end_positions=end,
            has_answers=torch.tensor(holds),
            return_dict=True,
        )
        if name == "several":
            result.loss.backward()
            outputs |= gradients(reader, "reader") | {"gradient/relevance": relevance.grad}
        outputs |= {
            f"reader_loss/{name}": result.reader_loss,
            f"retriever_loss/{name}": result.retriever_loss,
        }
        inputs[f"gold/{name}"] = {"spans": gold, "holds": holds}
    handle.remove()
    outputs |= {"span_logits": kept[0], "reader_relevance": relevance.detach()}
    inputs["reading"] = {"question": question, "bodies": bodies}


def answering(config, tokenizer, words, blocks, talk, folder, inputs) -> None:  # type: ignore[no-untyped-def]
    """The final answers of RealmForOpenQA over a small collection."""
    records = np.array([text.encode() for text in blocks], dtype=object)
    retriever = RealmRetriever(records, tokenizer)
    model = randomised(RealmForOpenQA(config, retriever))
    model.block_emb = torch.randn_like(model.block_emb)
    saved(model, tokenizer, folder / "openqa")
    np.save(folder / "openqa" / "block_records.npy", records)
    questions = [sentence(words, talk, 3, 8) for _ in range(4)]
    answers = []
    for question in questions:
        with torch.no_grad():
            _, answer = model(**tokenizer([question], return_tensors="pt"), return_dict=False)
        answers.append(tokenizer.decode(answer))
    inputs["answering"] = {"questions": questions, "answers": answers, "read": config.reader_beam_size}


if __name__ == "__main__":
    main()
