# Measured in docs/log.md (2026-11-16) on the version before the redesign; not part of the package, and not run by anything.
"""Prototype: one step of joint training with everything on the device. Passages are gathered from resident token arrays, sequences are
packed there, spans found there; layers and heads are compiled; the whole step (forwards, backwards, clipping, AdamW) is one CUDA graph for
each of a few sizes. Per step the host copies one small array, launches a search and a graph, and waits once, for two totals.

B sentences, K passages each (null first), N = B·K pairs, U passages of a step, S masks, T wordpieces of packed sequences, H hidden, W widths.
"""

import math, time
import numpy as np, torch, torch.nn.functional as F
from torch import nn
from realmlm.model.bert import Bert

NEG = -1e30


# --- attention and layers -----------------------------------------------------------------------------------------------------------
def attend(q, k, v, borders, longest, p=0.0):
    if q.is_cuda:
        if p > 0:
            return torch.ops.aten._flash_attention_forward(
                q, k, v, borders, borders, longest, longest, p, False, False
            )[0]
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, borders, borders, longest, longest)
    parts = [slice(a, b) for a, b in zip(borders[:-1].tolist(), borders[1:].tolist()) if b > a]
    return torch.cat(
        [
            F.scaled_dot_product_attention(
                q[s].transpose(0, 1), k[s].transpose(0, 1), v[s].transpose(0, 1)
            ).transpose(0, 1)
            for s in parts
        ]
    )


def bert_layer(
    x, borders, wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, wi, bi, w2, b2, g2, bb2, longest, heads, p, pa, eps
):
    q, k, v = (
        y.view(len(x), heads, -1)
        for y in F.linear(x, torch.cat([wq, wk, wv]), torch.cat([bq, bk, bv])).chunk(3, -1)
    )
    seen = attend(q, k, v, borders, longest, pa).flatten(1)
    x = F.layer_norm(F.dropout(F.linear(seen, wo, bo), p) + x, (x.shape[1],), g1, b1, eps)
    return F.layer_norm(
        F.dropout(F.linear(F.gelu(F.linear(x, wi, bi)), w2, b2), p) + x, (x.shape[1],), g2, bb2, eps
    )


def modern_layer(x, cos, sin, borders, g1, wqkv, wo, g2, wi, w2, longest, heads, eps):
    h = x if g1 is None else F.layer_norm(x, (x.shape[1],), g1, None, eps)
    q, k, v = (
        F.linear(h, wqkv).view(len(x), 3, heads, -1).unbind(1)
    )  # not chunk(3, -1): the gradient of rotation and chunk together took 7.3 ms a step, this 1.7

    def rotate(y):
        half = y.shape[-1] // 2
        z = y.float()
        return (z * cos[:, None] + torch.cat([-z[..., half:], z[..., :half]], -1) * sin[:, None]).to(y.dtype)

    seen = attend(rotate(q), rotate(k), v, borders, longest).flatten(1)
    x = x + F.linear(seen, wo)
    a, gate = F.linear(F.layer_norm(x, (x.shape[1],), g2, None, eps), wi).chunk(2, -1)
    return x + F.linear(F.gelu(a) * gate, w2)


def mask_head(h, targets, wd, bd, g, b, words, bias, eps):
    """log p of the targets [S·K]; h [S·K, H]"""
    z = F.layer_norm(F.gelu(F.linear(h, wd, bd)), (wd.shape[0],), g, b, eps)
    logits = F.linear(z, words, bias).float()
    return logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, 1)


def span_scores(h, w_se, b_se, g, b, wo, eps, widths: int):
    start, end = F.linear(h, w_se, b_se).chunk(2, -1)
    padded = F.pad(end, (0, 0, 0, widths - 1))
    out = []
    for w in range(widths):
        x = F.relu(start + padded[w : w + len(h)]).float()
        out.append((F.layer_norm(x, (x.shape[1],), g, b, eps) * wo).sum(-1))
    return torch.stack(out, 1)


class Fns:
    """The compiled parts; the number of wordpieces is the only size that is left open."""

    def __init__(self, compiled):
        self.compiled, self.made = compiled, {}

    def __call__(self, f, tensors, consts):
        key = (f, consts)
        if key not in self.made:
            g = lambda *t: f(*t, *consts)
            self.made[key] = torch.compile(g) if self.compiled else g
        if self.compiled:
            for t in tensors:
                if t is not None and not isinstance(t, nn.Parameter) and len(t) > 300:
                    torch._dynamo.maybe_mark_dynamic(t, 0)
        return self.made[key](*tensors)


def embed_bert(tok, col, seg, word, pos, typ, g, b, eps, p):
    return F.dropout(
        F.layer_norm(
            F.embedding(tok, word) + F.embedding(seg, typ) + F.embedding(col, pos),
            (word.shape[1],),
            g,
            b,
            eps,
        ),
        p,
    )


def embed_modern(tok, word, g, eps):
    return F.layer_norm(F.embedding(tok, word), (word.shape[1],), g, None, eps)


def encode(body, fns, packed, longest, train):
    tok, col, seg, borders = packed["tokens"], packed["columns"], packed["segments"], packed["borders"]
    if isinstance(body, Bert):
        c = body.config
        e = body.embeddings
        p = c.hidden_dropout_prob * train
        eps = c.layer_norm_eps
        x = fns(
            embed_bert,
            (
                tok,
                col,
                seg,
                e["word_embeddings"].weight,
                e["position_embeddings"].weight,
                e["token_type_embeddings"].weight,
                e["LayerNorm"].weight,
                e["LayerNorm"].bias,
            ),
            (eps, p),
        )
        for l in body.encoder["layer"]:
            s, o = l.attention["self"], l.attention["output"]
            x = fns(
                bert_layer,
                (
                    x,
                    borders,
                    s["query"].weight,
                    s["query"].bias,
                    s["key"].weight,
                    s["key"].bias,
                    s["value"].weight,
                    s["value"].bias,
                    o["dense"].weight,
                    o["dense"].bias,
                    o["LayerNorm"].weight,
                    o["LayerNorm"].bias,
                    l.intermediate["dense"].weight,
                    l.intermediate["dense"].bias,
                    l.output["dense"].weight,
                    l.output["dense"].bias,
                    l.output["LayerNorm"].weight,
                    l.output["LayerNorm"].bias,
                ),
                (longest, c.num_attention_heads, p, body.attention_dropout_used * train, eps),
            )
        return x
    c = body.config
    eps = c.norm_eps
    x = fns(embed_modern, (tok, body.embeddings.tok_embeddings.weight, body.embeddings.norm.weight), (eps,))
    angle = col[:, None].float() * body.rotary_emb.full_attention_inv_freq[None].float()
    angle = torch.cat([angle, angle], -1)
    cos, sin = angle.cos(), angle.sin()
    for l in body.layers:
        g1 = None if isinstance(l.attn_norm, nn.Identity) else l.attn_norm.weight
        x = fns(
            modern_layer,
            (
                x,
                cos,
                sin,
                borders,
                g1,
                l.attn.Wqkv.weight,
                l.attn.Wo.weight,
                l.mlp_norm.weight,
                l.mlp.Wi.weight,
                l.mlp.Wo.weight,
            ),
            (longest, c.num_attention_heads, eps),
        )
    return F.layer_norm(x, (x.shape[1],), body.final_norm.weight, None, eps)


# --- sequences packed on the device ---------------------------------------------------------------------------------------------------
def assemble(
    total: int,
    spare: int,
    longest: int,
    single: bool,
    cls: int,
    sep: int,
    store,
    own_tokens,
    n_first,
    first_at,
    n_mid,
    mid_at,
    n_body,
    body_at,
    there,
    first_is_own: bool,
):
    """[CLS] first [SEP] (mid [SEP]) body [SEP] of N sequences end to end in `total` places; what is left is cut into sequences of padding."""
    N = len(n_first)
    mid = torch.where(n_mid > 0, n_mid + 1, 0)
    length = 2 + n_first if single else 3 + n_first + mid + n_body
    length = torch.where(there, length, 0)
    ends = length.cumsum(0)
    starts = ends - length
    used = ends[-1]
    t = torch.arange(total, device=ends.device)
    seq = torch.searchsorted(ends, t, right=True)
    row = seq.clamp(max=N - 1)
    real = seq < N
    tail = torch.div(t - used, longest, rounding_mode="floor").clamp(min=0)
    col = torch.where(real, t - starts[row], (t - used) - tail * longest)
    borders = torch.cat(
        [
            ends.new_zeros(1),
            ends,
            (used + longest * torch.arange(1, spare + 1, device=ends.device)).clamp(max=total),
        ]
    ).to(torch.int32)
    f = n_first[row]
    a = col - 1
    m = n_mid[row]
    mm = mid[row]
    y = n_body[row]
    o = col - f - 2
    in_first = (a >= 0) & (a < f)
    first_place = (first_at[row] + a).clamp(min=0)
    if first_is_own:
        first_tok = own_tokens.flatten()[torch.where(in_first & real, first_place, 0)]
    else:
        first_tok = store[torch.where(in_first & real, first_place, 0)]
    tok = torch.where(in_first, first_tok, sep)
    if not single:
        in_mid = (o >= 0) & (o < m)
        j = o - mm
        in_body = (j >= 0) & (j < y)
        place = torch.where(in_mid, mid_at[row] + o, torch.where(in_body, body_at[row] + j, 0))
        tok = torch.where((in_mid | in_body) & real, store[torch.where(real, place, 0)], tok)
        inside = in_body & real
    else:
        j = o
        inside = torch.zeros_like(real)
    tok = torch.where(col == 0, cls, tok)
    tok = torch.where(real, tok, 0)
    seg = ((o >= 0) & real & (not single)).long()
    return dict(
        tokens=tok.long(),
        columns=col,
        segments=seg,
        borders=borders,
        row=torch.where(real, row, N),
        starts=starts,
        length=length,
        used=used,
        in_body=inside,
        body_place=j,
        body_length=y,
    )


def held_pairs(store, body_at, n_body, ids_BK, runs, run_len, longest: int):
    """Where the hidden words stand in the passages: [B·K, longest]; ids −1 or the null document hold nothing."""
    z = ids_BK.flatten()
    b = torch.arange(len(z), device=z.device) // ids_BK.shape[1]
    W = runs.shape[1]
    j = torch.arange(longest + W, device=z.device)
    tok = store[(body_at[z][:, None] + j).clamp(max=len(store) - 1)]
    n = run_len[b][:, None]
    y = n_body[z][:, None]
    ok = (n > 0) & (j[:longest] + n <= y)
    for i in range(W):
        ok = ok & ((i >= n) | (tok[:, i : i + longest] == runs[b, i][:, None]))
    return ok


def point_losses(h, ok_NJ, starts, begin, y, run_len_N, room: int, score):
    """log p(words where they stand) [N] (0 where they do not), and where they do; only `room` pairs are looked at, those that hold them first"""
    N, J = ok_NJ.shape
    held = ok_NJ.any(1)
    order = held.long().argsort(descending=True, stable=True)[:room]
    j = torch.arange(J, device=h.device)
    valid = (j < y[order][:, None]) & held[order][:, None]
    at = torch.where(
        valid,
        (starts + begin)[order][:, None] + j,
        torch.arange(room * J, device=h.device).view(room, J) % len(h),
    )
    sc = score(h.index_select(0, at.flatten())).view(room, J, -1)
    W = sc.shape[2]
    w = torch.arange(W, device=h.device)
    sc = sc.masked_fill(~(valid[:, :, None] & (j[None, :, None] + w < y[order][:, None, None])), NEG)
    gold = sc.gather(2, (run_len_N[order] - 1).clamp(min=0)[:, None, None].expand(-1, J, 1))[
        :, :, 0
    ].masked_fill(~ok_NJ[order], NEG)
    lp = torch.logsumexp(gold, 1) - torch.logsumexp(sc.flatten(1), 1)
    return torch.zeros(N, device=h.device).index_put((order,), torch.where(held[order], lp, 0.0)), held


# --- the step ---------------------------------------------------------------------------------------------------------------------------
FIELDS = ("query", "q_len", "runs", "run_len", "own", "mask_row", "mask_pos", "mask_target", "mask_valid")


def batch_array(drawn, own, B, S, E, max_query=64, W=10):
    """A batch as one int32 array: what a worker hands over."""
    m = drawn.masked
    q = np.zeros((B, max_query), np.int32)
    ql = np.zeros(B, np.int32)
    for i, x in enumerate(m.queries):
        x = x[:max_query]
        q[i, : len(x)] = x
        ql[i] = len(x)
    runs = np.zeros((B, W), np.int32)
    rl = np.zeros(B, np.int32)
    for i, r in enumerate(m.runs(W)):
        if r is not None:
            runs[i, : len(r)] = r
            rl[i] = len(r)
    rows, cols = np.nonzero(m.valid_BM.numpy())
    n = len(rows)
    if n > S:
        S = -(-n // (B // 2 or 1)) * (B // 2 or 1)
    mr, mp, mt, mv = (np.zeros(S, np.int32) for _ in range(4))
    mr[:n] = rows
    mp[:n] = m.positions_BM.numpy()[rows, cols]
    mt[:n] = m.targets_BM.numpy()[rows, cols]
    mv[:n] = 1
    o = np.full((B, E), -1, np.int32)
    ids = own(drawn.passages).numpy()
    o[:, : min(E, ids.shape[1])] = ids[:, :E]
    return np.concatenate([x.ravel() for x in (q, ql, runs, rl, o, mr, mp, mt, mv)]), S


def views(flat, B, S, E, max_query=64, W=10):
    shapes = ((B, max_query), (B,), (B, W), (B,), (B, E), (S,), (S,), (S,), (S,))
    out = {}
    at = 0
    for n, s in zip(FIELDS, shapes):
        c = math.prod(s)
        out[n] = flat[at : at + c].view(s).long()
        at += c
    return out


class FastStep:
    def __init__(
        self,
        model,
        pieces,
        corpus,
        index,
        own,
        *,
        B,
        k=8,
        pointing=1.0,
        compiled=True,
        graphs=True,
        lr=1e-5,
        retriever_lr=1e-6,
        clip=1.0,
        attn_dropout=0.0,
        dedup=True,
        fused_adam=True,
    ):
        self.model, self.index, self.own, self.B, self.K, self.pointing = model, index, own, B, k, pointing
        self.fns = Fns(compiled)
        self.graphs_on = graphs
        self.dev = model.device
        self.E = max(1, own.most)
        self.clip = clip
        self.dedup = dedup
        self.cls, self.sep = pieces.pair.before[0][0], pieces.pair.between[0][0]
        base = corpus._base
        f, o = base._flat, base._offsets
        P = len(base.articles)
        put = lambda a, t=torch.int64: torch.from_numpy(np.asarray(a)).to(self.dev, t)
        tokens = np.asarray(f["tokens"]).astype(np.int32)
        titles = np.asarray(f["title_tokens"]).astype(np.int32)
        self.store = torch.cat([put(tokens, torch.int32), put(titles, torch.int32)])
        to = np.asarray(o["token"])
        tt = np.asarray(o["title_token"])
        art = np.asarray(base.articles)
        z = lambda a: put(np.append(a, 0))
        self.body_at, self.n_body = z(to[:-1]), z(np.diff(to))
        self.title_at, self.n_title = z(tt[:-1][art] + len(tokens)), z(np.diff(tt)[art])
        self.null = P
        c = model.config
        self.max_q = c.max_query
        self.L = c.max_passage + c.max_query + 40
        self.read_titles = c.read_titles
        for body in (model.document.encoder.body, model.query.encoder.body, model.reader.encoder.body):
            if isinstance(body, Bert):
                body.attention_dropout_used = attn_dropout
        self.groups = {"reader": list(model.reader.parameters()), "retriever": model.retriever_parameters()}
        parts = []
        for name, ps in self.groups.items():
            tr = [p for p in ps if p.requires_grad]
            rate = lr if name == "reader" else retriever_lr
            for ps2, wd in (([p for p in tr if p.ndim > 1], 0.01), ([p for p in tr if p.ndim <= 1], 0.0)):
                parts.append(
                    {
                        "params": ps2,
                        "weight_decay": wd,
                        "lr": torch.tensor(rate, device=self.dev) if self.dev.type == "cuda" else rate,
                    }
                )
        self.opt = torch.optim.AdamW(
            parts,
            betas=(0.9, 0.98),
            eps=1e-6,
            **({"fused": True} if fused_adam and self.dev.type == "cuda" else {}),
            **({"capturable": True} if self.dev.type == "cuda" else {}),
        )
        self.flat = {}
        self.kept = {}
        self.pool = None
        self.ids = torch.zeros(B, k - 1, dtype=torch.int64, device=self.dev)
        self.plan_ = None
        self.sums = torch.zeros(8, device=self.dev)
        self.captures = 0
        self.host = (
            torch.zeros(2, dtype=torch.int64).pin_memory()
            if self.dev.type == "cuda"
            else torch.zeros(2, dtype=torch.int64)
        )

    def autocast(self):
        return torch.autocast(self.dev.type, dtype=torch.bfloat16, enabled=self.dev.type == "cuda")

    # packed inputs
    def packed_queries(self, v):
        B = self.B
        z = torch.zeros(B, dtype=torch.int64, device=self.dev)
        T = B * (self.max_q // 2 + 8)
        return assemble(
            self.t_query(v),
            -(-self.B * (self.max_q + 2) // self.L) + 1,
            self.L,
            True,
            self.cls,
            self.sep,
            self.store,
            v["query"],
            v["q_len"],
            torch.arange(B, device=self.dev) * self.max_q,
            z,
            z,
            z,
            z,
            z == 0,
            True,
        )

    def t_query(self, v):
        return self.B * (self.max_q + 2)

    def packed_docs(self, uniq, there, T):
        z = torch.zeros_like(uniq)
        return assemble(
            T,
            -(-T // (4 * self.L)) + 1,
            self.L,
            False,
            self.cls,
            self.sep,
            self.store,
            self.store,
            self.n_title[uniq],
            self.title_at[uniq],
            z,
            z,
            self.n_body[uniq],
            self.body_at[uniq],
            there,
            False,
        )

    def packed_pairs(self, v, pass_BK, T):
        z = pass_BK.flatten()
        b = torch.arange(self.B, device=self.dev).repeat_interleave(self.K)
        nt = self.n_title[z] if self.read_titles else torch.zeros_like(z)
        return assemble(
            T,
            -(-T // (4 * self.L)) + 1,
            self.L,
            False,
            self.cls,
            self.sep,
            self.store,
            v["query"],
            v["q_len"][b],
            b * self.max_q,
            nt,
            self.title_at[z],
            self.n_body[z],
            self.body_at[z],
            z >= 0,
            True,
        )

    def tower(self, tower, packed, N, train):
        h = encode(tower.encoder.body, self.fns, packed, self.L, train)
        assert tower.pooling == "mean"
        pooled = (
            torch.zeros(N + 1, h.shape[1], device=h.device).index_add(0, packed["row"], h.float())[:N]
            / packed["length"].clamp(min=1)[:, None]
        )
        return tower.norm(tower.projection(pooled)).float() * tower.scale

    @torch.no_grad()
    def plan(self, v, ids_BK):
        """Different passages of the step, where each pair's is among them, and how many wordpieces docs and pairs have."""
        flat = ids_BK.flatten()
        M = len(flat)
        if self.dedup:
            s, order = flat.sort()
            new = torch.cat([s.new_ones(1), (s[1:] != s[:-1]).long()])
            rank = new.cumsum(0) - 1
            uniq = torch.full((M,), self.null, dtype=torch.int64, device=self.dev).scatter(0, rank, s)
            place = torch.empty_like(flat).scatter(0, order, rank)
            count = rank[-1] + 1
        else:
            uniq, place, count = flat, torch.arange(M, device=self.dev), torch.tensor(M, device=self.dev)
        uniq = torch.cat([torch.full((1,), self.null, device=self.dev), uniq])
        there = torch.arange(M + 1, device=self.dev) <= count
        docs = torch.where(there, 3 + self.n_title[uniq] + self.n_body[uniq], 0).sum()
        nt = self.n_title[flat] * int(self.read_titles)
        pairs = (
            (3 + self.n_body[flat] + torch.where(nt > 0, nt + 1, 0)).sum()
            + 3 * self.B
            + (v["q_len"] * self.K).sum()
        )
        held = (
            held_pairs(
                self.store,
                self.body_at,
                self.n_body,
                ids_BK,
                v["runs"],
                v["run_len"],
                self.model.config.max_passage,
            )
            .any(1)
            .sum()
        )
        return uniq, there, place.view(self.B, -1) + 1, torch.stack([docs, pairs, held])

    def loss(self, v, uniq, there, place, ids_BK, T_doc, T_pair, room, train=True):
        m, K, B = self.model, self.K, self.B
        q = self.tower(m.query, self.packed_queries(v), B, train)
        d = self.tower(m.document, self.packed_docs(uniq, there, T_doc), len(uniq), train)
        with torch.autocast(self.dev.type, enabled=False):
            at = torch.cat([torch.zeros(B, 1, dtype=torch.int64, device=self.dev), place], 1)
            retrieval = torch.einsum("bd,bkd->bk", q, d[at])
        pass_BK = torch.cat([torch.full((B, 1), self.null, device=self.dev), ids_BK], 1)
        pk = self.packed_pairs(v, pass_BK, T_pair)
        h = encode(m.reader.encoder.body, self.fns, pk, self.L, train)
        S = len(v["mask_row"])
        rows = v["mask_row"][:, None] * K + torch.arange(K, device=self.dev)
        where = pk["starts"][rows] + 1 + v["mask_pos"][:, None]
        mh = m.reader.mask_head
        tok = self.fns(
            mask_head,
            (
                h[where.flatten()],
                v["mask_target"].repeat_interleave(K),
                mh.dense.weight,
                mh.dense.bias,
                mh.norm.weight,
                mh.norm.bias,
                m.reader.embedding.weight,
                mh.bias,
            ),
            (mh.norm.eps,),
        ).view(S, K)
        reader = torch.zeros(B, K, device=self.dev).index_add(
            0, v["mask_row"], tok * v["mask_valid"][:, None]
        )
        logp = retrieval.log_softmax(-1)
        joint = torch.logsumexp(logp + reader, -1)
        loss = -joint.mean()
        p = logp.exp()
        nums = [joint.mean(), p[:, 1:].max(-1).values.mean(), (joint - reader[:, 0]).mean(), p[:, 0].mean()]
        if self.pointing:
            sh = m.reader.span_head
            score = lambda x: (
                self.fns(
                    span_scores,
                    (
                        x,
                        sh.start_end.weight,
                        sh.start_end.bias,
                        sh.norm.weight,
                        sh.norm.bias,
                        sh.output.weight.flatten(),
                    ),
                    (sh.norm.eps, sh.max_width),
                ).float()
                + sh.output.bias
            )
            z = pass_BK.flatten()
            b = torch.arange(B * K, device=self.dev) // K
            nt = self.n_title[z] * int(self.read_titles)
            ok = held_pairs(
                self.store, self.body_at, self.n_body, pass_BK, v["runs"], v["run_len"], m.config.max_passage
            )
            lp, held = point_losses(
                h,
                ok,
                pk["starts"],
                2 + v["q_len"][b] + torch.where(nt > 0, nt + 1, 0),
                self.n_body[z],
                v["run_len"][b],
                room,
                score,
            )
            some = held.view(B, K).any(-1)
            pt = torch.where(held.view(B, K), lp.view(B, K), -torch.inf)
            pt = torch.where(some[:, None], pt, 0.0)
            found = torch.logsumexp(logp + pt, -1)
            loss = loss - self.pointing * torch.where(some, found, 0.0).mean()
            nums += [some.float().mean(), torch.where(some, found.exp(), 0.0).sum() / some.sum().clamp(min=1)]
        return loss, torch.stack([loss.detach(), *[n.detach() for n in nums]])

    # one step
    def buckets(self, docs, pairs, held):
        grain = max(256, self.B * 40)  # wordpieces; at most ~4% of padding
        part = max(2, self.B)
        return (
            -(-docs // grain) * grain,
            -(-pairs // (grain)) * grain,
            min(self.B * self.K, max(1, -(-held // part)) * part),
        )

    def body(self, v, uniq, there, place, ids, T_doc, T_pair, room):
        for p in self.opt.param_groups:
            for x in p["params"]:
                x.grad = None
        with self.autocast():
            loss, nums = self.loss(v, uniq, there, place, ids, T_doc, T_pair, room)
        loss.backward()
        for ps in self.groups.values():
            nn.utils.clip_grad_norm_([p for p in ps if p.grad is not None], self.clip)
        self.opt.step()
        self.sums[: len(nums)] += nums
        return nums

    def query_vectors(self, v):
        with self.autocast():
            return self.tower(self.model.query, self.packed_queries(v), self.B, self.model.training).detach()

    def step(self, array, S):
        B, E = self.B, self.E
        if S not in self.flat:
            self.flat[S] = torch.zeros(len(array), dtype=torch.int32, device=self.dev)
        flat = self.flat[S]
        flat.copy_(array, non_blocking=True)
        if not self.graphs_on:
            v = views(flat, B, S, E)
            q = self.query_vectors(v)
            ids = self.index.search(q.float(), self.K - 1, exclude_QE=v["own"]).ids_QK
            uniq, there, place, tot = self.plan(v, ids)
            return self.body(v, uniq, there, place, ids, *self.buckets(*tot.tolist()))
        if ("q", S) not in self.kept:
            self.capture_query(S)
        g, q, own = self.kept["q", S]
        g.replay()
        self.ids.copy_(self.index.search(q, self.K - 1, exclude_QE=own).ids_QK)
        g, tot = self.kept["p", S]
        g.replay()
        key = (S, *self.buckets(*tot.tolist()))
        if key not in self.kept:
            self.capture(key)
        g, nums = self.kept[key]
        g.replay()
        return nums

    def _warm(self, f, n=2):
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            for _ in range(n):
                f()
        torch.cuda.current_stream().wait_stream(s)
        torch.cuda.synchronize()

    def record(self, f):
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, pool=self.pool, capture_error_mode="thread_local"):
            out = f()
        self.pool = self.pool or g.pool()
        self.captures += 1
        return g, out

    def capture_query(self, S):
        def f():
            v = views(self.flat[S], self.B, S, self.E)
            return self.query_vectors(v), v["own"]

        self._warm(f)
        g, (q, own) = self.record(f)
        self.kept["q", S] = (g, q, own)

        def p():
            v = views(self.flat[S], self.B, S, self.E)
            r = self.plan(v, self.ids)
            if self.plan_ is None:
                self.plan_ = [x.clone() for x in r[:3]]
            else:
                [a.copy_(b) for a, b in zip(self.plan_, r[:3])]
            return r[3]

        self._warm(p)
        g, tot = self.record(p)
        self.kept["p", S] = (g, tot)

    def capture(self, key):
        S, *sizes = key

        def f():
            return self.body(views(self.flat[S], self.B, S, self.E), *self.plan_, self.ids, *sizes)

        # weights must not move while compiled parts are made ready: they are kept and put back
        first = not self.opt.state
        with torch.no_grad():
            state = [p.detach().clone() for p in self.model.parameters()]
            moments = [[x.clone() for x in st.values()] for st in self.opt.state.values()]
            sums = self.sums.clone()
        if first:
            self._warm(
                f, 3
            )  # later sizes need no new kernels; warming them beside the graphs' memory ran out of it at 512 sentences (not measured since)
        with torch.no_grad():
            for p, s in zip(self.model.parameters(), state):
                p.copy_(s)
            for i, st in enumerate(self.opt.state.values()):
                for j, x in enumerate(st.values()):
                    x.zero_() if first else x.copy_(moments[i][j])
            self.sums.copy_(sums)
        del state, moments
        for g in self.opt.param_groups:
            for p in g["params"]:
                p.grad = None
        torch.cuda.empty_cache()
        self.kept[key] = self.record(f)
