"""Classes of transformers that build a tokenizer from only the tokens and merges of tokenizer.json.

Most folders are read by the class that uses tokenizer.json unchanged. The class of a folder and the parts
that it builds decide the ids, so both follow transformers: normaliser, pre-tokenizer, decoder, the options of
the BPE, and the names of tokens that tokenizer_config.json leaves out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamgen.text.folder_files import CONFIG, SETTINGS, TOKENIZER
from streamgen.text.known import says_nothing, shown
from streamgen.text.words import SPACE, WORDS

AS_IS = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend", "BloomTokenizer")

# Types of models whose tokenizer.json is read unchanged, for any class that the folder names.
_AS_IS = """
    EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5
    ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2
    gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax
    hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next
    mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3
    mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron
    nvfp4 nystromformer olmo2 olmo3 olmo_hybrid opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v
    phimoe pix2struct pixtral pocket_tts smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime
    xlm-roberta-xl
"""
MODELS_AS_IS = frozenset(_AS_IS.split())
# Types of models for which a class that is unknown here reads a folder without a class name.
_OF_OTHER_CLASSES = """
aimv2 albert align bark bart barthez bartpho bert bert-generation bert-japanese bertweet big_bird biogpt
blenderbot blenderbot-small blip bridgetower bros byt5 camembert canine chinese_clip clap clip clipseg
clvp code_llama convbert cpm cpmant ctrl data2vec-audio data2vec-text deberta deberta-v2 dia distilbert
dpr electra ernie esm esmc esmfold2 flaubert flava florence2 fnet fsmt funnel git gpt-sw3
gpt_neox_japanese granite_speech5_ctc grounding-dino groupvit gte herbert hubert ibert
jina_embeddings_v3 lasr_ctc lasr_encoder layoutlm layoutlmv2 layoutlmv3 layoutxlm led lilt longformer
luke lxmert m2m_100 marian markuplm mbart mbart50 mega megatron-bert metaclip_2 mgp-str mluke
mm-grounding-dino mobilebert mpnet mra mt5 musicgen musicgen_melody mvp myt5 nemotron3_5_asr
nemotron_asr_streaming nezha nllb nllb-moe nomic_bert nougat omdet-turbo oneformer openai-gpt owlv2
owlvit parakeet_ctc parakeet_rnnt parakeet_tdt pegasus perceiver phobert plbart pp_formulanet prophetnet
qdqbert rag realm reformer rembert retribert roberta roberta-prelayernorm roc_bert roformer sam3
sam3_video seamless_m4t seamless_m4t_v2 siglip siglip2 speech_to_text speecht5 splinter squeezebert
switch_transformers t5 tapas tipsv2 trocr tvp udop unispeech unispeech-sat videoprism vilt visual_bert
vits wav2vec2 wav2vec2-bert wav2vec2-conformer wav2vec2_phoneme whisper xclip xglm xlm xlm-roberta xlnet
xmod yoso
"""
MODELS_OF_OTHER_CLASSES = frozenset(_OF_OTHER_CLASSES.split())
# Types of models for which this class reads a folder without a class name.
MODELS_OF_CLASSES = {
    name: kind
    for kind, names in {
        "GPT2Tokenizer": "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip "
        "instructblipvideo jais2 opt phi starcoder2",
        "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
        "GemmaTokenizer": "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text "
        "recurrent_gemma shieldgemma2 t5gemma zaya",
        "Qwen2Tokenizer": "audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl "
        "lighton_ocr moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio "
        "qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe "
        "vibevoice",
        "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp",
        "CohereTokenizer": "aya_vision cohere cohere2",
        "LlamaTokenizer": "idefics idefics2",
    }.items()
    for name in names.split()
}
# Types of models for which this class reads every folder, because folders name wrong classes.
CORRECTED = ("hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp")


@dataclass(frozen=True, kw_only=True)
class TokenizerClass:
    """The parts that one class builds.

    names: of tokens that a folder does not name. parts: makes the built parts in the library's JSON from the
    fields add_prefix_space (whether a space is put before a text) and legacy of tokenizer_config.json. model:
    options of the BPE. unknown: whether the BPE has an unknown token. again: whether it adds named tokens
    again, without the spaces that they take. starts: whether it keeps the tokens that tokenizer.json adds
    before and after a text.
    """

    names: Mapping[str, str]
    parts: Callable[[bool | None, bool], Mapping[str, Any]]
    model: Mapping[str, bool] = field(default_factory=dict)
    unknown: bool = False
    again: bool = False
    starts: bool = True

    def built(self, written: Mapping[str, Any], fields: Mapping[str, Any], unknown: str | None) -> Any:
        """The library's JSON, without added tokens. written: tokenizer.json. fields: tokenizer_config.json.
        unknown: the unknown token. ValueError for other models than BPE."""
        model = written["model"]
        if model.get("type", "BPE") != "BPE" or not {"vocab", "merges"} <= model.keys():
            raise ValueError(
                f"tokenizer_class of {SETTINGS} builds a BPE; {TOKENIZER} has {model.get('type')}"
            )
        space = fields.get("add_prefix_space")
        if not isinstance(space, (bool, type(None))):
            raise ValueError(f"add_prefix_space of {SETTINGS} is {shown(space)}; allowed: true, false, null")
        bpe = {"type": "BPE", "vocab": model["vocab"], "merges": model["merges"], **self.model}
        if self.unknown:
            bpe["unk_token"] = unknown
        behind = written.get("post_processor") if self.starts else None
        parts: dict[str, Any] = {
            "normalizer": None,
            "post_processor": behind,
            "model": bpe,
            "added_tokens": [],
        }
        return {"version": "1.0", **parts, **self.parts(space, not says_nothing(fields.get("legacy")))}


def class_of(fields: Mapping[str, Any], config: Mapping[str, Any], byte_level: bool) -> str | None:
    """The name of the class that builds a folder's tokenizer; None for the class that reads tokenizer.json
    unchanged.

    fields, config: of tokenizer_config.json and config.json. byte_level: whether tokenizer.json names
    ByteLevel; Llama's class cannot be meant then. ValueError for an unknown class.
    """
    named = fields.get("tokenizer_class") or config.get("tokenizer_class")
    kind = config.get("model_type")
    kind = kind if isinstance(kind, str) else ""
    model_class = MODELS_OF_CLASSES.get(kind)
    if kind in CORRECTED or (not named and model_class is not None):
        return model_class
    if not named:
        if kind in MODELS_OF_OTHER_CLASSES:
            raise ValueError(
                f"{SETTINGS} names no tokenizer_class, and that of the model_type {kind!r} is not known; "
                f"PreTrainedTokenizerFast reads {TOKENIZER} as it is"
            )
        return None
    if not isinstance(named, str):
        raise ValueError(f"tokenizer_class of {SETTINGS} is {shown(named)}; a name is needed")
    name = named.removesuffix("Fast")
    if kind in MODELS_AS_IS or name in AS_IS or (name == "LlamaTokenizer" and byte_level):
        return None
    if name not in CLASSES:
        where = SETTINGS if fields.get("tokenizer_class") else CONFIG
        raise ValueError(
            f"tokenizer_class of {where} is {named!r}; known are PreTrainedTokenizerFast, which "
            f"reads {TOKENIZER} as it is, {', '.join(CLASSES)}"
        )
    return name


def _byte_level(space: bool | None, *steps: Any, words: bool = True, nfc: bool = False) -> dict[str, Any]:
    to_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": bool(space),
        "trim_offsets": True,
        "use_regex": words,
    }
    return {
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, to_bytes]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }


def _pieces(*, strips: bool) -> dict[str, Any]:
    """The decoder of SentencePiece's tokens. strips: whether a text loses its first space."""
    steps: list[Any] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if strips:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _llama(space: bool | None, legacy: bool) -> dict[str, Any]:
    before = space is not False
    scheme = ("always" if legacy else "first") if before else "never"
    cut = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    return {"pre_tokenizer": cut, "decoder": _pieces(strips=before)}


def _gemma(space: bool | None, legacy: bool) -> dict[str, Any]:
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False
        },
        "decoder": _pieces(strips=False),
    }  # fmt: skip


def _words_of(name: str) -> Callable[[bool | None, bool], Mapping[str, Any]]:
    return lambda space, legacy: _byte_level(space, *WORDS[name].steps, words=False, nfc=True)


END = "<|endoftext|>"
GPT2_NAMES = {"unk_token": END, "bos_token": END, "eos_token": END}
QWEN_NAMES = {"unk_token": END, "eos_token": END, "pad_token": END}
_GPT2 = TokenizerClass(names=GPT2_NAMES, parts=lambda space, legacy: _byte_level(space))
_PIECES = {"fuse_unk": True, "byte_fallback": True}

CLASSES = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "GPTNeoXTokenizer": TokenizerClass(
        names=GPT2_NAMES | {"pad_token": "<|padding|>"},
        parts=lambda space, legacy: _byte_level(space, nfc=True),
        starts=False,
    ),
    "Qwen2Tokenizer": TokenizerClass(names=QWEN_NAMES, parts=_words_of("qwen2"), again=True),
    "Qwen3_5Tokenizer": TokenizerClass(names=QWEN_NAMES, parts=_words_of("qwen35")),
    "CohereTokenizer": TokenizerClass(
        names={
            "unk_token": "<UNK>",
            "bos_token": "<BOS_TOKEN>",
            "eos_token": "<|END_OF_TURN_TOKEN|>",
            "pad_token": "<PAD>",
            "cls_token": "<CLS>",
            "sep_token": "<SEP>",
            "mask_token": "<MASK_TOKEN>",
        },
        parts=lambda space, legacy: _byte_level(space, *WORDS["smollm"].steps, nfc=True),
    ),
    "LlamaTokenizer": TokenizerClass(
        names={"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, parts=_llama, model=_PIECES
    ),
    "GemmaTokenizer": TokenizerClass(
        names={
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        parts=_gemma,
        model=_PIECES,
        unknown=True,
    ),
}
