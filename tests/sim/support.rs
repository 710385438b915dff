//! A subscriber's picture of an engine, kept from its events alone: names, counts, chains of tokens.

use std::collections::BTreeMap;

use kvtap::sim::event::{Event, Name};
use kvtap::sim::pool::Prompt;

/// What a block is, in full: everything its name stands for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Chain {
    pub lora: Option<String>,
    pub salt: Option<String>,
    pub tokens: Vec<u32>,
}

/// Counts by name, as the events give them.
#[derive(Default, Debug)]
pub struct Picture {
    pub held: BTreeMap<Name, (Chain, usize)>,
}

impl Picture {
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Cleared => self.held.clear(),
                Event::Removed(removed) => {
                    for name in &removed.names {
                        let (_, count) = self.held.get_mut(name).expect("only held blocks are removed");
                        *count -= 1;
                        if *count == 0 {
                            self.held.remove(name);
                        }
                    }
                }
                Event::Stored(stored) => {
                    assert_eq!(stored.tokens.len(), stored.names.len() * stored.block_size as usize);
                    let keys = stored.extra_keys.as_ref().expect("one list of keys a block");
                    assert_eq!(keys.len(), stored.names.len());
                    let lora = stored.lora.as_ref().map(|lora| lora.name.clone());
                    let mut chain = match &stored.parent {
                        Some(parent) => self.held.get(parent).expect("the parent is held").0.clone(),
                        None => Chain { salt: salt(&keys[0], lora.is_some()), lora, tokens: Vec::new() },
                    };
                    for (name, block) in stored.names.iter().zip(stored.tokens.chunks(stored.block_size as usize)) {
                        chain.tokens.extend(block);
                        let (known, count) = self.held.entry(name.clone()).or_insert_with(|| (chain.clone(), 0));
                        assert_eq!(*known, chain, "one name stands for one content");
                        *count += 1;
                    }
                }
            }
        }
    }

    /// Leading blocks of a prompt, by content.
    pub fn leading(&self, prompt: &Prompt, block_size: usize) -> usize {
        (1..=prompt.tokens.len() / block_size)
            .take_while(|blocks| {
                let chain = Chain {
                    lora: prompt.lora.as_ref().map(|lora| lora.name.clone()),
                    salt: prompt.salt.clone(),
                    tokens: prompt.tokens[..blocks * block_size].to_vec(),
                };
                self.held.values().any(|(held, _)| *held == chain)
            })
            .count()
    }

    pub fn copies(&self) -> usize {
        self.held.values().map(|(_, count)| count).sum()
    }
}

fn salt(keys: &Option<Vec<kvtap::block::extra_keys::Item>>, lora: bool) -> Option<String> {
    use kvtap::block::extra_keys::Item;
    match keys.as_ref()?.get(usize::from(lora))? {
        Item::Text(text) => Some(text.clone()),
        other => panic!("a salt that is {other:?}"),
    }
}
