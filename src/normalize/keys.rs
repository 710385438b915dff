//! What an engine folds into a block's hash besides tokens, taken apart: LoRA name, cache salt, the rest.
//!
//! vLLM orders a block's extra keys LoRA name, multimodal hashes, cache salt (first block of a prompt only),
//! prompt-embeds digest. Nothing on the wire labels them, so they are told apart by form:
//!
//! * the LoRA name is a first item that equals the event's own `lora_name`;
//! * multimodal hashes are `[identifier, offset]` pairs since vLLM 0.19, bare text in 0.17 and 0.18;
//! * the salt is bare text in block 0. A bare text that another block of the same event carries too is a
//!   multimodal identifier, for a salt never does that.
//!
//! A one-block image of vLLM 0.17 or 0.18 is thus read as a salt. Either mistake keeps its blocks apart from
//! everybody else's: it can hide a match, never invent one.

use crate::block::extra_keys::{self, Item};

/// The salt among the extra keys of a first block, if there is one: its place in `blocks[0]`. Where an engine names the
/// salt outright, it is `named`, and nothing else is taken for it.
pub(super) fn salt_position(blocks: &[Vec<Item>], lora_name: Option<&str>, named: Option<&str>) -> Option<usize> {
    let (first, others) = blocks.split_first()?;
    let skip = usize::from(is_lora(first, lora_name));
    if let Some(named) = named {
        let is_named = |item: &Item| matches!(item, Item::Text(text) if text == named);
        return first.iter().skip(skip).position(is_named).map(|i| i + skip);
    }
    first
        .iter()
        .enumerate()
        .skip(skip)
        .rev()
        .filter(|(_, item)| matches!(item, Item::Text(_)))
        .find(|(_, item)| !others.iter().any(|block| block.contains(item)))
        .map(|(i, _)| i)
}

/// Appends to `out` the canonical bytes of one block's extra keys, without its LoRA name and without the salt
/// at `salt`.
pub(super) fn canonical(items: &[Item], lora_name: Option<&str>, salt: Option<usize>, out: &mut Vec<u8>) {
    let skip = usize::from(is_lora(items, lora_name));
    let rest: Vec<Item> =
        items.iter().enumerate().skip(skip).filter(|(i, _)| Some(*i) != salt).map(|(_, item)| item.clone()).collect();
    extra_keys::encode(&rest, out);
}

fn is_lora(items: &[Item], lora_name: Option<&str>) -> bool {
    matches!((items.first(), lora_name), (Some(Item::Text(text)), Some(name)) if text == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(s: &str) -> Item {
        Item::Text(s.to_owned())
    }

    fn pair(s: &str, offset: i64) -> Item {
        Item::List(vec![text(s), Item::Signed(offset)])
    }

    fn bytes_of(items: &[Item], lora: Option<&str>, salt: Option<usize>) -> Vec<u8> {
        let mut out = Vec::new();
        canonical(items, lora, salt, &mut out);
        out
    }

    #[test]
    fn lora_name_and_salt_are_taken_out_and_the_image_stays() {
        let first = vec![text("adapter"), pair("image", 10), text("tenant")];
        let second = vec![text("adapter"), pair("image", -6)];
        let blocks = [first.clone(), second.clone()];
        let salt = salt_position(&blocks, Some("adapter"), None);
        assert_eq!(salt, Some(2));
        assert_eq!(bytes_of(&first, Some("adapter"), salt), bytes_of(&[pair("image", 10)], None, None));
        assert_eq!(bytes_of(&second, Some("adapter"), None), bytes_of(&[pair("image", -6)], None, None));
    }

    #[test]
    fn a_lora_name_alone_is_no_salt() {
        let blocks = [vec![text("adapter")], vec![text("adapter")]];
        assert_eq!(salt_position(&blocks, Some("adapter"), None), None);
        assert!(bytes_of(&blocks[0], Some("adapter"), None).is_empty());
    }

    #[test]
    fn bare_text_that_another_block_repeats_is_an_image_not_a_salt() {
        let blocks = [vec![text("image"), text("tenant")], vec![text("image")]];
        assert_eq!(salt_position(&blocks, None, None), Some(1));
        let blocks = [vec![text("image")], vec![text("image")]];
        assert_eq!(salt_position(&blocks, None, None), None);
    }

    #[test]
    fn a_salt_that_equals_the_lora_name_is_still_found_behind_it() {
        let blocks = [vec![text("x"), text("x")]];
        assert_eq!(salt_position(&blocks, Some("x"), None), Some(1));
    }
}
