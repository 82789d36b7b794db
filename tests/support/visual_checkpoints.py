"""A tiny InternVL with VisualPRM's tokens, the authors' formula for it, and images."""

from __future__ import annotations

import io

import torch
from PIL import Image
from published_checkpoints import TINY, byte_tokenizer
from transformers import InternVLConfig, InternVLForConditionalGeneration, InternVLVisionConfig, Qwen2Config

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]
SIDE, TILE_TOKENS = 28, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def save(directory, *, tokens=TOKENS, **changes):
    """A checkpoint of random weights; returns the model."""
    torch.manual_seed(5)
    vision = InternVLVisionConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=SIDE,
        patch_size=7,
        attention_bias=True,
        initializer_range=0.3,
    )
    text = Qwen2Config(**TINY | {"max_position_embeddings": 8192} | changes)
    tokenizer = byte_tokenizer(tokens)
    config = InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids(tokens[-1]),
        image_seq_length=TILE_TOKENS,
        tie_word_embeddings=False,
    )
    model = InternVLForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model


def picture(size=(60, 40), seed=0, form="PNG", **options):
    """Bytes of an image of noise."""
    noise = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    stream = io.BytesIO()
    Image.fromarray(noise.to(torch.uint8).numpy()).save(stream, form, **options)
    return stream.getvalue()


def tiles(content):
    """Tiles ``[T, 3, side, side]`` as the model card's ``load_image`` gives them, without torchvision."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = image.size
    grids = sorted(
        {(i, j) for n in range(1, 13) for i in range(1, n + 1) for j in range(1, n + 1) if 1 <= i * j <= 12},
        key=lambda grid: grid[0] * grid[1],
    )
    best, difference = (1, 1), float("inf")
    for grid in grids:
        gap = abs(width / height - grid[0] / grid[1])
        if gap < difference:
            best, difference = grid, gap
        elif gap == difference and width * height > 0.5 * SIDE * SIDE * grid[0] * grid[1]:
            best = grid
    across, down = best
    resized = image.resize((SIDE * across, SIDE * down), Image.Resampling.BICUBIC)
    parts = [
        resized.crop((x * SIDE, y * SIDE, (x + 1) * SIDE, (y + 1) * SIDE))
        for y in range(down)
        for x in range(across)
    ]
    if len(parts) > 1:
        parts.append(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    pixels = [
        torch.tensor(list(part.tobytes())).reshape(SIDE, SIDE, 3).permute(2, 0, 1) / 255 for part in parts
    ]
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return torch.stack([(each - mean) / std for each in pixels])


@torch.no_grad()
def authors_scores(model, tokenizer, system, question, steps, images):
    """``generate_steps_with_soft_score``: one pass a step, over the conversation up to it; also the ids.

    The vision tower is read by itself and its features are put in by hand, as the authors' ``forward`` does.
    """
    pixels = [tiles(content) for content in images]
    if images and "<image>" not in question:
        question = "<image>\n" * len(images) + question
    scores, ids, history = [], [], ""
    for number, step in enumerate(steps):
        turn = step if number else f"### Question:\n{question}\n\n### Solution Process:\n{step}"
        query = f"<|im_start|>system\n{system}<|im_end|>\n{history}"
        query += f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"
        history += f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n+<|im_end|>\n"
        for each in pixels:
            query = query.replace("<image>", f"<img>{'<IMG_CONTEXT>' * TILE_TOKENS * len(each)}</img>", 1)
        ids = tokenizer(query, return_tensors="pt")["input_ids"]
        embedded = model.get_input_embeddings()(ids).clone()
        if pixels:
            features = model.get_image_features(torch.cat(pixels)).pooler_output
            embedded[ids == tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")] = features.flatten(0, 1)
        logits = model(inputs_embeds=embedded).logits[0, -1]
        pair = logits[[tokenizer.convert_tokens_to_ids(sign) for sign in "+-"]]
        scores.append(float(pair.softmax(-1)[0]))
    return scores, ids[0].tolist()
