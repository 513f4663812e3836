"""The quick encoder of CPUs, by each of its products, against the plain one."""

import copy

import pytest
import torch
from torch import Tensor, nn

from realmlm.model.bert import Bert, BertSettings
from realmlm.model.int8 import Int8Linear, hold_int8
from realmlm.model.quick import (
    BFLOAT16,
    EIGHT_BITS,
    EightBits,
    EightBitsAfterGelu,
    EightBitsAfterNorm,
    Product,
    QuickBert,
    Way,
    fastest,
)
from realmlm.model.realm import Realm

COLUMNS = 64
ROWS = 96
WAYS = {"bfloat16": BFLOAT16, "8 bits": EIGHT_BITS}


def in_int8(weight_RC: Tensor) -> tuple[Tensor, Tensor]:
    scale_R = weight_RC.abs().amax(1) / 127
    return (weight_RC / scale_R[:, None]).round().to(torch.int8), scale_R


@pytest.fixture
def bert() -> Bert:
    settings = BertSettings(
        vocab_size=50,
        hidden_size=COLUMNS,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=ROWS,
        max_position_embeddings=40,
    )
    model = Bert(settings).eval().requires_grad_(False)
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=random)
        parameter.copy_(0.3 * drawn if parameter.ndim > 1 else 1 + 0.1 * drawn)
    matrices = {
        f"{name}.weight": in_int8(part.weight)
        for name, part in model.encoder.named_modules(prefix="encoder")
        if isinstance(part, nn.Linear)
    }
    hold_int8(model, matrices)
    return model


def layer() -> Int8Linear:
    random = torch.Generator().manual_seed(1)
    plain = nn.Linear(COLUMNS, ROWS).requires_grad_(False)
    plain.bias.copy_(torch.randn(ROWS, generator=random))
    return Int8Linear(plain, *in_int8(torch.randn(ROWS, COLUMNS, generator=random)))


def off(product: Product, held: Int8Linear, x_TC: Tensor) -> float:
    """How far a product is from that in float64, as a part of it."""
    exact_TR = x_TC.double() @ held.weight.double().T + held.bias.double()
    return float((product(x_TC.clone(), 1) - exact_TR).norm() / exact_TR.norm())


def test_products_in_8_bits_are_those_of_the_rounded_numbers() -> None:
    held = layer()
    random = torch.Generator().manual_seed(2)
    x_TC = torch.randn(30, COLUMNS, generator=random) * torch.logspace(-6, 6, 30)[:, None]
    x_TC[3] = 0.0
    scale_T1 = x_TC.abs().amax(1, keepdim=True).clamp(min=1e-20) / 127
    expected_TR = ((x_TC / scale_T1).round() * scale_T1) @ held.weight.T + held.bias
    given_TR = EightBits([held])(x_TC, 0)
    assert torch.allclose(given_TR / scale_T1, expected_TR / scale_T1, rtol=1e-4, atol=1e-2)
    assert torch.equal(given_TR[3], held.bias)


def test_first_rows_are_computed_finely() -> None:
    held = layer()
    x_TC = torch.randn(30, COLUMNS, generator=torch.Generator().manual_seed(7))
    exact_TR = x_TC.double() @ held.weight.double().T + held.bias.double()
    error_T = (EightBits([held])(x_TC, 10) - exact_TR).norm(dim=1)
    assert error_T[:10].max() < error_T[10:].min() / 50


def test_what_a_wordpiece_gives_does_not_depend_on_the_others() -> None:
    held = layer()
    x_TC = torch.randn(20, COLUMNS, generator=torch.Generator().manual_seed(3))
    together_TR = EightBits([held])(x_TC, 1)
    x_TC[:-1] *= 1000
    assert torch.equal(EightBits([held])(x_TC, 1)[-1], together_TR[-1])


def test_two_layers_over_the_same_numbers_stand_side_by_side() -> None:
    x_TC = torch.randn(5, COLUMNS, generator=torch.Generator().manual_seed(4))
    held = layer()
    for kind in (BFLOAT16.usual, EightBits):
        assert torch.equal(kind([held, held])(x_TC, 1), kind([held])(x_TC, 1).repeat(1, 2))


def test_the_products_for_one_place_are_closer_there_than_the_usual_one() -> None:
    held = layer()
    random = torch.Generator().manual_seed(5)
    norm = nn.LayerNorm(COLUMNS).requires_grad_(False)
    norm.weight[7] = 30.0
    norm.bias[9] = -100.0
    normed_TC = norm(torch.randn(50, COLUMNS, generator=random))
    after_gelu_TC = nn.functional.gelu(torch.randn(50, COLUMNS, generator=random))
    usual = EightBits([held])
    assert off(EightBitsAfterNorm([held], norm), held, normed_TC) < off(usual, held, normed_TC) / 4
    assert off(EightBitsAfterGelu([held]), held, after_gelu_TC) < off(usual, held, after_gelu_TC) / 1.4


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@torch.inference_mode()
def test_the_quick_encoder_gives_what_the_plain_one_gives(bert: Bert, way: Way) -> None:
    random = torch.Generator().manual_seed(6)
    lengths_N = torch.tensor([16, 33, 2, 7])
    tokens_NL = torch.randint(2, 50, (4, 33), generator=random)
    tokens_NL[:, 0] = 0
    tokens_NL[torch.arange(4), lengths_N - 1] = 1
    mask_NL = (torch.arange(33) < lengths_N[:, None]).long()
    segments_NL = torch.randint(0, 2, (4, 33), generator=random)
    expected_NLH = bert(tokens_NL, mask_NL, segments_NL).last_hidden_state
    quick = QuickBert(bert, way)
    given_NLH = quick(tokens_NL, mask_NL, segments_NL).last_hidden_state
    there_NL = mask_NL.bool()
    cosine_T = torch.cosine_similarity(given_NLH[there_NL], expected_NLH[there_NL], dim=-1)
    assert cosine_T.min() > 0.995
    assert not given_NLH[~there_NL].any()
    for row, length in enumerate(lengths_N.tolist()):
        alone = (part_NL[row : row + 1, :length] for part_NL in (tokens_NL, mask_NL, segments_NL))
        assert torch.allclose(quick(*alone).last_hidden_state[0], given_NLH[row, :length], atol=1e-5)


@torch.inference_mode()
def test_finely_is_closer_in_the_bundled_reader() -> None:
    model = Realm.from_pretrained(int8=True)
    body = model.reader.encoder.body
    asked = model.wordpieces.encode("Which bird wades?")
    passage = model.wordpieces.encode(
        "The heron is a long-legged wading bird of lakes, rivers and coasts. " * 3
    )
    inputs = model.reader_inputs([asked], [asked[:1]], [passage])
    given = (inputs.tokens_NL, inputs.attention_NL, inputs.segments_NL)
    exact_NLH = body(*given).last_hidden_state
    quick = [QuickBert(body, EIGHT_BITS, finely=finely) for finely in (False, True)]
    usual, fine = (float((encode(*given).last_hidden_state - exact_NLH).norm()) for encode in quick)
    assert fine < usual


def test_the_way_is_found_by_measuring() -> None:
    assert fastest(int8=True) in (None, BFLOAT16, EIGHT_BITS)
    assert fastest(int8=False) in (None, BFLOAT16)


def test_measuring_draws_no_random_numbers() -> None:
    """Training may ask the model something in between, and draws on as if it had not."""
    before = torch.get_rng_state()
    fastest.__wrapped__(int8=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_bundled_model_embeds_in_8_bits_as_it_does_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realmlm.model.encoders.fastest", lambda int8: EIGHT_BITS if int8 else None)
    model = Realm.from_pretrained(int8=True)
    texts = [
        "The heron is a long-legged wading bird.",
        "In 1869 Mendeleev published a table of the elements.",
    ]
    exact_ND = model.embed_passages(texts)
    model.compute_quickly()
    quick_ND = model.embed_passages(texts)
    assert not torch.equal(quick_ND, exact_ND)
    assert torch.cosine_similarity(quick_ND, exact_ND).min() > 0.998
    other = copy.deepcopy(model)
    assert torch.equal(other.embed_passages(texts), quick_ND), "a copy packs its own matrices"
