//! Byte-level byte-pair encoding: a piece of text starts as its bytes, and the
//! neighbours whose merge was learned first are joined until none is left.
//! Knows no special tokens and no chat.
//!
//! Sennrich et al. 2016 (arXiv:1508.07909), over bytes as in GPT-2.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fornax_gguf::Gguf;

use crate::byte_alphabet::{letter_of, spelled_bytes};
use crate::error::Error;
use crate::split::Scheme;
use crate::vocabulary::{TOKENS, TokenKind, Vocabulary, damaged};

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The merges of a vocabulary and how text is cut before they apply.
#[derive(Debug)]
pub(crate) struct Bpe {
    pub scheme: Scheme,
    /// [256] the token of each single byte, where it has one.
    byte_tokens: [Option<u32>; 256],
    /// What two neighbouring tokens become, and how early that was learned.
    merges: FastMap<(u32, u32), Merge>,
    /// The tokens that are text, by their bytes; only where whole pieces are taken at once.
    whole_pieces: Option<FastMap<Box<[u8]>, u32>>,
}

/// Ordered by rank: the smaller is applied first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Merge {
    rank: u32,
    token: u32,
}

impl Bpe {
    /// Reads vocabulary and merges of `gguf`.
    ///
    /// # Errors
    /// A pre-tokenizer that is not supported, a merge of something that is not a token, two
    /// tokens or merges that are the same, a printable ASCII character without a token.
    pub(crate) fn read(gguf: &Gguf) -> Result<(Vocabulary, Bpe), Error> {
        let name = gguf.metadata().str(PRE)?;
        let scheme = Scheme::from_name(name).ok_or_else(|| Error::Unsupported {
            file: gguf.source().to_owned(),
            key: PRE,
            found: name.to_owned(),
            supported: Scheme::names(),
        })?;
        let vocabulary = Vocabulary::read(gguf, spelled)?;
        let ids = ids_by_text(gguf)?;
        let bpe = Bpe {
            scheme,
            byte_tokens: byte_tokens(gguf, &ids)?,
            merges: read_merges(gguf, &vocabulary, &ids)?,
            whole_pieces: scheme.whole_pieces.then(|| text_tokens(&vocabulary)),
        };
        Ok((vocabulary, bpe))
    }

    /// Appends the tokens of `text`, which holds no added tokens, to `out`.
    pub(crate) fn encode(&self, text: &str, workspace: &mut Workspace, out: &mut Vec<u32>) {
        for piece in self.scheme.pre_tokenizer.pieces(text) {
            match self.whole_piece(piece) {
                Some(token) => out.push(token),
                None => self.merge(piece.as_bytes(), workspace, out),
            }
        }
    }

    /// The token of a single byte, where the vocabulary has one.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.byte_tokens[usize::from(byte)]
    }

    fn whole_piece(&self, piece: &str) -> Option<u32> {
        self.whole_pieces.as_ref()?.get(piece.as_bytes()).copied()
    }

    /// Appends the tokens of one piece: always the earliest learned merge, and of equals the
    /// leftmost. A queue finds it, so that n bytes cost O(n log n) and not O(n²).
    fn merge(&self, piece: &[u8], workspace: &mut Workspace, out: &mut Vec<u32>) {
        let bytes = piece
            .iter()
            .map(|&byte| self.byte_tokens[usize::from(byte)]);
        workspace.fill(bytes.flatten());
        for left in 0..workspace.symbols.len() {
            self.offer(workspace, left);
        }
        while let Some(Reverse(candidate)) = workspace.queue.pop() {
            crate::work::step();
            let left = candidate.left;
            if workspace.pair(left) != Some(candidate.pair) {
                continue; // One of the two was merged with its other neighbour meanwhile.
            }
            let before = workspace.join(left, candidate.merge.token);
            self.offer(workspace, left);
            if let Some(before) = before {
                self.offer(workspace, before);
            }
        }
        out.extend(workspace.tokens());
    }

    /// Queues the merge of the token at `left` with its neighbour to the right, if there is one.
    fn offer(&self, workspace: &mut Workspace, left: usize) {
        if let Some(pair) = workspace.pair(left)
            && let Some(&merge) = self.merges.get(&pair)
        {
            workspace
                .queue
                .push(Reverse(Candidate { merge, left, pair }));
        }
    }
}

/// A possible merge; the order is that in which merges are done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Candidate {
    merge: Merge,
    /// Position of the left token.
    left: usize,
    /// Both tokens when this was found; out of date once they are others.
    pair: (u32, u32),
}

/// The symbols of one piece while they are merged; kept between pieces to save allocations.
#[derive(Default)]
pub(crate) struct Workspace {
    /// [bytes of the piece] a doubly linked list; merged-away symbols stay in place, dead.
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

struct Symbol {
    /// `None` once it was merged into its left neighbour.
    token: Option<u32>,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Workspace {
    fn fill(&mut self, tokens: impl Iterator<Item = u32>) {
        self.queue.clear();
        self.symbols.clear();
        let symbol = |(index, token): (usize, u32)| Symbol {
            token: Some(token),
            previous: index.checked_sub(1),
            next: Some(index + 1),
        };
        self.symbols.extend(tokens.enumerate().map(symbol));
        if let Some(last) = self.symbols.last_mut() {
            last.next = None;
        }
    }

    /// The token at `left` and its right neighbour, if both are alive.
    fn pair(&self, left: usize) -> Option<(u32, u32)> {
        let symbol = &self.symbols[left];
        Some((symbol.token?, self.symbols[symbol.next?].token?))
    }

    /// Replaces `left` and its right neighbour by `token`; returns the neighbour to the left.
    fn join(&mut self, left: usize, token: u32) -> Option<usize> {
        let right = self.symbols[left]
            .next
            .expect("invariant: a queued pair has a right side");
        let after = self.symbols[right].next;
        self.symbols[right].token = None;
        self.symbols[left].token = Some(token);
        self.symbols[left].next = after;
        if let Some(after) = after {
            self.symbols[after].previous = Some(left);
        }
        self.symbols[left].previous
    }

    fn tokens(&self) -> impl Iterator<Item = u32> {
        self.symbols.iter().filter_map(|symbol| symbol.token)
    }
}

/// The bytes that a stored token stands for: byte letters for text, itself for added tokens.
fn spelled(text: &str, kind: TokenKind) -> Vec<u8> {
    let bytes = match kind {
        TokenKind::Normal => spelled_bytes(text),
        _ => None,
    };
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn ids_by_text(gguf: &Gguf) -> Result<FastMap<&str, u32>, Error> {
    let texts = gguf.metadata().strings(TOKENS)?;
    let mut ids = FastMap::with_capacity_and_hasher(texts.len(), Default::default());
    for (id, text) in (0u32..).zip(texts) {
        if let Some(first) = ids.insert(text.as_str(), id) {
            let problem = format!("tokens {first} and {id} are both {text:?}");
            return Err(damaged(gguf, TOKENS, problem));
        }
    }
    Ok(ids)
}

/// Some vocabularies were learned without ever seeing certain bytes (SmolLM's lacks 21); text
/// loses these, as in llama.cpp and `tokenizers`. One that cannot spell ASCII is damaged.
fn byte_tokens(gguf: &Gguf, ids: &FastMap<&str, u32>) -> Result<[Option<u32>; 256], Error> {
    let mut tokens = [None; 256];
    for byte in 0..=u8::MAX {
        let letter = letter_of(byte).to_string();
        let token = ids.get(letter.as_str()).copied();
        if token.is_none() && matches!(byte, b' '..=b'~') {
            let problem = format!(
                "{:?} has no token (it is written {letter:?})",
                char::from(byte)
            );
            return Err(damaged(gguf, TOKENS, problem));
        }
        tokens[usize::from(byte)] = token;
    }
    Ok(tokens)
}

fn read_merges(
    gguf: &Gguf,
    vocabulary: &Vocabulary,
    ids: &FastMap<&str, u32>,
) -> Result<FastMap<(u32, u32), Merge>, Error> {
    let lines = gguf.metadata().strings(MERGES)?;
    let mut merges = FastMap::with_capacity_and_hasher(lines.len(), Default::default());
    for (rank, line) in (0u32..).zip(lines) {
        let wrong =
            |problem: &str| damaged(gguf, MERGES, format!("merge {rank}, {line:?}, {problem}"));
        // A token may begin with a space of its own, so the first character never separates.
        let space = line
            .char_indices()
            .skip(1)
            .find(|(_, letter)| *letter == ' ');
        let (space, _) = space.ok_or_else(|| wrong("is not two tokens with a space between"))?;
        let (left, right) = (&line[..space], &line[space + 1..]);
        let token = |text: &str| {
            let id = ids.get(text).copied();
            id.ok_or_else(|| wrong(&format!("names {text:?}, which is not a token")))
        };
        let pair = (token(left)?, token(right)?);
        let merge = Merge {
            rank,
            token: token(&format!("{left}{right}"))?,
        };
        if vocabulary.kind(merge.token) == Some(TokenKind::Control) {
            return Err(wrong("would spell a control token from text"));
        }
        if merges.insert(pair, merge).is_some() {
            return Err(wrong("stands there twice"));
        }
    }
    Ok(merges)
}

fn text_tokens(vocabulary: &Vocabulary) -> FastMap<Box<[u8]>, u32> {
    vocabulary
        .iter()
        .filter(|(_, _, kind)| *kind == TokenKind::Normal)
        .map(|(token, bytes, _)| (bytes.into(), token))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, repeatable};
    use proptest::prelude::*;

    /// The definition: again and again the first of the earliest learned merges, found by looking.
    fn by_definition(bpe: &Bpe, piece: &str) -> Vec<u32> {
        let bytes = piece.bytes();
        let mut tokens: Vec<u32> = bytes
            .filter_map(|byte| bpe.byte_tokens[usize::from(byte)])
            .collect();
        loop {
            let pairs = tokens.windows(2).enumerate();
            let known =
                pairs.filter_map(|(at, pair)| Some((bpe.merges.get(&(pair[0], pair[1]))?, at)));
            let Some((merge, at)) = known.min() else {
                return tokens;
            };
            let token = merge.token;
            tokens.splice(at..at + 2, [token]);
        }
    }

    #[test]
    fn earlier_merges_and_then_left_ones_go_first() {
        let sample = Sample::default();
        let (_, bpe) = Bpe::read(&sample.gguf()).unwrap();
        let mut tokens = Vec::new();
        bpe.merge(b"abaab", &mut Workspace::default(), &mut tokens);
        assert_eq!(tokens, [sample.id("ab"), sample.id("a"), sample.id("ab")]);
    }

    proptest! {
        #![proptest_config(repeatable(300))]

        #[test]
        fn the_queue_merges_by_definition(piece in "(a|b|l|o|w|e|r| ){0,60}") {
            let (_, bpe) = Bpe::read(&Sample::default().gguf()).unwrap();
            let mut tokens = Vec::new();
            bpe.merge(piece.as_bytes(), &mut Workspace::default(), &mut tokens);
            prop_assert_eq!(tokens, by_definition(&bpe, &piece));
        }
    }
}
