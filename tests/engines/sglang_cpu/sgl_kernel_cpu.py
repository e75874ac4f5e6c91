"""What SGLang asks of `sgl_kernel` on a CPU, by torch and by our ops: attention, places in its cache, trees."""

import ctypes

import torch
from torch.nn.functional import scaled_dot_product_attention

from specdec_kernels.engines.sglang import build_tree_kernel_efficient, verify_tree_greedy


def attend(q, keys, values, mask, scaling):
    """[n, H, D] of queries [n, H, D]; keys, values [L, G, D]; mask [n, L]."""
    q, keys, values = (x.movedim(0, 1)[None] for x in (q, keys, values))
    return scaled_dot_product_attention(q, keys, values, mask, scale=scaling, enable_gqa=True)[0].movedim(0, 1)


def extend_attention_cpu(
    q, k, v, out, keys, values, k_scale, v_scale, req_to_token, pool, seq_lens, extend_lens, starts, longest, scaling,
    cap, is_cross, window, encoder_lens, sinks, tree_mask, is_causal,
):  # fmt: skip
    """The last tokens of texts, which the cache has already; a tree's nodes attend as its mask [B n n] says."""
    for row, (length, n, start) in enumerate(
        zip(seq_lens.tolist(), extend_lens.tolist(), starts.tolist(), strict=True)
    ):
        mask = torch.ones(n, length, dtype=torch.bool).tril(length - n)
        if tree_mask is not None:
            mask[:, length - n :] = tree_mask.view(-1, n, n)[row]
        there = req_to_token[pool[row], :length]
        part = slice(start, start + n)
        out[part] = attend(q[part], keys[there], values[there], mask, scaling)


def decode_attention_cpu(
    q, keys, values, k_scale, v_scale, out, k, v, loc, logits, req_to_token, pool, seq_lens, scaling, *rest
):  # fmt: skip
    """One token of each text, which goes into the cache first."""
    if k is not None:
        keys[loc], values[loc] = k.view(-1, *keys.shape[1:]), v.view(-1, *values.shape[1:])
    for row, length in enumerate(seq_lens.tolist()):
        there = req_to_token[pool[row], :length]
        out[row] = attend(q[row, None], keys[there], values[there], None, scaling)[0]


def spans(req_to_token, pool, begin, end):
    """Of each request the places of its tokens from `begin` to before `end`."""
    for row, first, last in zip(pool.tolist(), begin.tolist(), end.tolist(), strict=True):
        yield req_to_token[row, first:last]


def assign_req_to_token_pool_cpu(pool, req_to_token, begin, end, loc, width):
    at = 0
    for span in spans(req_to_token, pool, begin, end):
        span.copy_(loc[at : at + len(span)])
        at += len(span)


def assign_extend_cache_locs_cpu(pool, req_to_token, begin, end, out, width):
    found = torch.cat([*spans(req_to_token, pool, begin, end)])
    out[: len(found)] = found


def assign_draft_cache_locs_contiguous_cpu(pool, req_to_token, seq_lens, out, width, topk, steps):
    assign_extend_cache_locs_cpu(pool, req_to_token, seq_lens, seq_lens + topk * steps, out, width)


def build_draft_decode_metadata_cpu(req_to_token, pool, seq_lens, topk, steps, width):
    """[B topk, width]: the text's places, then those of a candidate's own drafts, which lie `steps` apart."""
    rows = req_to_token[pool].repeat_interleave(topk, 0)
    for row, begin in enumerate(seq_lens.repeat_interleave(topk).tolist()):
        own = begin + row % topk * steps
        rows[row, begin : begin + steps] = rows[row, own : own + steps].clone()
    return rows


def fill_accept_out_cache_loc_cpu(accept_index, loc, out):
    kept = accept_index[accept_index >= 0]
    out[: len(kept)] = loc[kept]


def fill_bonus_tokens_cpu(tokens, lengths, out, width):
    out.copy_(tokens.view(-1, width).gather(1, (lengths - 1).long()[:, None])[:, 0])


def copy_all_layer_kv_cache_cpu(pointers, strides, target, source):
    """Rows of buffers that begin at these addresses; strides are in bytes."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(pointer + stride * at, stride) for at in source.tolist()]
        for at, row in zip(target.tolist(), read, strict=True):
            ctypes.memmove(pointer + stride * at, row, stride)


def reconstruct_indices_from_tree_mask(
    mask, seq_lens, positions, index, next_token, next_sibling, requests, n
):  # fmt: skip
    """Positions and links of trees [requests n n] whose node i has the ancestors mask[i]."""
    node = torch.arange(n)
    ancestors = mask.view(requests, n, n).tril(-1)
    positions.view(requests, n).copy_(ancestors.sum(-1) + seq_lens[:, None])
    index.copy_(torch.arange(requests * n).view(requests, n))
    parent = torch.where(ancestors.any(-1), (ancestors * node).amax(-1), -1)
    first = lambda found: torch.where(found.any(-1), found.int().argmax(-1), -1)  # noqa: E731
    next_token.copy_(first(parent[:, None] == node[:, None]))
    is_sibling = (parent[:, None] == parent[..., None]) & (parent[..., None] >= 0) & (node > node[:, None])
    next_sibling.copy_(first(is_sibling))


FUNCTIONS = {name: value for name, value in globals().items() if callable(value) and not name.startswith("_")}
FUNCTIONS["build_tree_kernel_efficient_cpu"] = build_tree_kernel_efficient
FUNCTIONS["verify_tree_greedy_cpu"] = verify_tree_greedy
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
