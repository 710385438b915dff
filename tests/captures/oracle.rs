//! What a life must come to: the index's reference model, told what a capture's `expect` says was meant.
//!
//! Nothing here looks at bytes, and nothing of the decoder or the normalizer is used: only the vocabulary (hashes,
//! grids, tiers, the canonical form of extra keys) and the model.

use std::collections::{BTreeMap, BTreeSet};

use kvtap::block::extra_keys::{self, Item};
use kvtap::block::{Grid, Group, GroupRule, Tier};
use kvtap::hash::{ContentHash, EngineHash, Seed};
use kvtap::index::model::{EventBlock, Model, StoreEvent};
use kvtap::index::{Chain, Copies, Limits, RankMatch};
use kvtap::worker::RankId;
use serde_json::Value;

const MODEL: &str = "m";
const RANK: RankId = RankId { slot: 0, generation: 0 };
/// More than any capture leaves waiting.
const ORPHANS: usize = 1 << 16;

/// CPython's `hash(())`: what SGLang before 0.5.1 sends as the parent of a prompt's first page.
const EMPTY_TUPLE: &str = "5740354900026072187";

/// A prompt as a router knows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub lora: Option<String>,
    pub salt: Option<String>,
    /// Per block, canonical, without LoRA name and salt.
    pub keys: Vec<Vec<u8>>,
}

/// One life.
pub struct Oracle {
    model: Model,
    /// Whether its names are not chained, so that an unknown parent proves nothing.
    unchained: bool,
    /// The block size that the configuration promises, where it does.
    promised: Option<u64>,
    grid: Option<Grid>,
    /// Blocks of another size than promised were refused on the device.
    pub conflict: bool,
    prefix_group: Option<Group>,
    rules: BTreeMap<Group, (GroupRule, u32)>,
    media: Vec<String>,
    /// What each name was announced for last.
    named: BTreeMap<String, Prompt>,
    /// Every chain that was announced, as far as it ever went.
    pub chains: BTreeSet<Prompt>,
    /// Blocks and events that are refused or say nothing, by line and reason.
    pub refused: BTreeMap<(String, &'static str), u64>,
}

/// Whether blocks of such a group mean that a prefix is present.
pub fn kind_is_full(kind: Option<&str>) -> bool {
    matches!(kind, None | Some("full_attention" | "mla_attention" | "sink_full_attention"))
}

/// An event's tokens and how many past its last block they reach. EAGLE's pairs `[t0, t1]` overlap by one.
pub fn tokens_of(event: &Value) -> (Vec<u32>, usize) {
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let list = event["token_ids"].as_array().unwrap();
    if let Some(first) = list.first().filter(|first| first.is_array()) {
        let rest = list.iter().map(|pair| number(&pair[1]));
        return (std::iter::once(number(&first[0])).chain(rest).collect(), 1);
    }
    let ahead = event["lookahead_token_ids"].as_array().and_then(|lists| lists.last()?.as_array());
    let ahead: Vec<u32> = ahead.into_iter().flatten().map(number).collect();
    let tokens = list.iter().map(number).chain(ahead.iter().copied()).collect();
    (tokens, ahead.len())
}

// === impl Prompt ===

impl Prompt {
    /// Its first blocks on a grid.
    pub fn first(&self, blocks: usize, grid: Grid) -> Self {
        let length = blocks * grid.size() as usize + grid.lookahead as usize;
        let keys = self.keys.iter().take(blocks).cloned().collect();
        Self { tokens: self.tokens[..length].to_vec(), keys, ..self.clone() }
    }

    /// Its content hashes, from its tokens.
    fn contents(&self, grid: Grid) -> Vec<ContentHash> {
        let seed = Seed::new(self.lora.as_deref(), self.salt.as_deref());
        let bytes = le(&self.tokens);
        let mut contents = Vec::new();
        grid.contents(&bytes, seed, |i| self.keys.get(i).map_or(&[][..], Vec::as_slice), &mut contents);
        contents
    }

    /// This chain and the blocks of `more` after it.
    fn extended(&self, more: &[u32], keys: &[Vec<u8>], grid: Grid) -> Self {
        let whole = grid.blocks(self.tokens.len());
        let mut prompt = self.clone();
        // The lookahead of the last block begins the next one.
        prompt.tokens.truncate(whole * grid.size() as usize);
        prompt.tokens.extend(more);
        prompt.keys.resize(whole, Vec::new());
        prompt.keys.extend_from_slice(keys);
        prompt
    }
}

// === impl Oracle ===

impl Oracle {
    pub fn new(unchained: bool, promised: Option<u64>) -> Self {
        let mut model = Model::new(Limits::default(), ORPHANS);
        model.register(RANK, MODEL, Copies::Count);
        Self {
            model,
            unchained,
            promised,
            grid: None,
            conflict: false,
            prefix_group: None,
            rules: BTreeMap::new(),
            media: Vec::new(),
            named: BTreeMap::new(),
            chains: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Applies one captured message.
    pub fn apply(&mut self, line: &Value) {
        let name = line["name"].as_str().unwrap();
        if line["expect"]["dp_rank"].as_u64().is_some_and(|rank| rank != 0) {
            // One socket is one rank, whatever a batch says.
            self.refuse(name, "rank_conflict", 1);
        }
        for event in line["expect"]["events"].as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "stored" => self.stored(name, event),
                "removed" => {
                    let Some(tier) = self.tier(name, event) else { continue };
                    let waiting = self.model.orphans(RANK);
                    let outcome = self.model.remove(RANK, tier, group_of(event), &hashes_of(event)).unwrap();
                    self.refuse(name, "orphan_removed", waiting - self.model.orphans(RANK));
                    self.refuse(name, "unknown_block", outcome.unknown);
                }
                "cleared" => {
                    self.model.clear(RANK).unwrap();
                    self.conflict = false;
                }
                other => panic!("{name}: what is {other}?"),
            }
        }
    }

    fn stored(&mut self, line: &str, event: &Value) {
        let (group, hashes) = (group_of(event), hashes_of(event));
        let (tokens, lookahead) = tokens_of(event);
        let size = event["block_size"].as_u64().unwrap();
        let Some(tier) = self.tier(line, event) else { return };
        if tokens.is_empty() {
            // Names only: what they stand for must be known.
            match self.rules.get(&group) {
                Some((GroupRule::Window { .. } | GroupRule::Unknown, _)) => {
                    self.model.hold(RANK, tier, group, &hashes).unwrap();
                }
                _ => {
                    let unknown = self.model.store_known(RANK, tier, group, &hashes).unwrap();
                    self.refuse(line, "unknown_block", unknown);
                }
            }
            return;
        }
        let rule = self.rule(group, event, size);
        if rule != GroupRule::Full || *self.prefix_group.get_or_insert(group) != group {
            self.model.hold(RANK, tier, group, &hashes).unwrap();
            return;
        }
        if tokens.len() != hashes.len() * size as usize + lookahead {
            // Which tokens belong to which block is not said.
            self.refuse(line, "not_dense", hashes.len().max(1));
            return;
        }
        if let Some(promised) = self.promised.filter(|promised| *promised != size) {
            // Beside blocks of the promised size a lone smaller block looks like a partial one.
            let partial = self.grid.is_some() && size < promised && hashes.len() == 1;
            self.conflict |= !partial && tier == Tier::Device;
            self.refuse(line, if partial { "partial_block" } else { "block_size_conflict" }, hashes.len());
            return;
        }
        let grid = Grid::with_lookahead(size, lookahead as u64).unwrap();
        self.model.set_grid(RANK, grid).expect("a life has one grid");
        self.grid = Some(grid);
        self.store(line, event, grid, tier, &tokens);
    }

    fn store(&mut self, line: &str, event: &Value, grid: Grid, tier: Tier, tokens: &[u32]) {
        let hashes = hashes_of(event);
        let parent = event["parent"].as_str().filter(|parent| *parent != EMPTY_TUPLE);
        let lora_name = event["lora_name"].as_str().map(str::to_owned);
        let lora = lora_name.clone().or_else(|| event["lora_id"].as_u64().map(|id| id.to_string()));
        let items = items_of(event);
        let salt_at = if parent.is_none() { salt_position(&items, lora.as_deref()) } else { None };
        let salt = event["cache_salt"].as_str().or(event["metadata"]["cache_salt"].as_str()).map(str::to_owned);
        let salt = salt.or_else(|| match salt_at.map(|at| &items[0][at]) {
            Some(Item::Text(text)) => Some(text.clone()),
            _ => None,
        });
        let keys: Vec<Vec<u8>> = (0..hashes.len())
            .map(|i| {
                canonical(items.get(i).map_or(&[][..], Vec::as_slice), lora.as_deref(), salt_at.filter(|_| i == 0))
            })
            .collect();

        // What a router would ask for.
        let before = match parent {
            None => Prompt { lora: lora.clone(), salt: salt.clone(), ..Prompt::default() },
            Some(parent) => self.named.get(parent).cloned().unwrap_or_default(),
        };
        let whole = before.extended(tokens, &keys, grid);
        let known = grid.blocks(before.tokens.len());
        for (i, name) in event["block_hashes"].as_array().unwrap().iter().enumerate() {
            self.named.insert(name.as_str().unwrap().to_owned(), whole.first(known + i + 1, grid));
        }
        // A chain that goes on is asked as its own prefix later.
        self.chains.remove(&before);
        self.chains.insert(whole);

        if self.unchained && parent.is_some_and(|parent| self.model.find(RANK, hash(parent)).is_none()) {
            // Whatever comes later under this name may be another block.
            self.refuse(line, "unrooted", hashes.len());
            return;
        }
        let (stride, width) = (grid.size() as usize, (grid.size() + grid.lookahead) as usize);
        let block = |(i, engine): (usize, &EngineHash)| EventBlock {
            engine: *engine,
            tokens: le(&tokens[i * stride..i * stride + width]),
            keys: keys[i].clone(),
        };
        let event = StoreEvent {
            parent: parent.map(hash),
            seed: Seed::new(lora.as_deref(), salt.as_deref()),
            tier,
            group: group_of(event),
            blocks: hashes.iter().enumerate().map(block).collect(),
        };
        self.model.store_event(RANK, event).unwrap();
    }

    /// The rule of a group. An engine that tells no kinds has one group of full attention, 0.
    fn rule(&mut self, group: Group, event: &Value, size: u64) -> GroupRule {
        let window = event["kv_cache_spec_sliding_window"].as_u64();
        let kind = event["kv_cache_spec_kind"].as_str();
        let rule = match (kind, window) {
            (None, _) => self.rules.get(&group).map_or(GroupRule::Full, |(rule, _)| *rule),
            (kind, _) if kind_is_full(kind) => GroupRule::Full,
            (Some("sliding_window"), Some(tokens)) => GroupRule::Window { tokens: tokens as u32 },
            _ => GroupRule::Unknown,
        };
        let largest = self.rules.get(&group).map_or(0, |(_, size)| *size).max(size as u32);
        self.rules.insert(group, (rule, largest));
        if rule != GroupRule::Full {
            self.model.note_group(RANK, group, rule, largest).unwrap();
        }
        rule
    }

    /// Where an event says its blocks lie; a word of ridiculous length is refused, and so is a fifth unknown one.
    fn tier(&mut self, line: &str, event: &Value) -> Option<Tier> {
        let medium = event["medium"].as_str().unwrap_or("GPU").to_ascii_uppercase();
        Some(match medium.as_str() {
            "GPU" | "DEVICE" => Tier::Device,
            "CPU" | "CPU_PINNED" | "CPU_TIER1" => Tier::Host,
            "CPU_TIER2" | "DISK" | "NVME" | "STORAGE" | "FS" => Tier::Disk,
            "EXTERNAL" | "NETWORK" | "REMOTE" | "SHARED" | "OBJ" => Tier::External,
            _ => {
                let known = self.media.iter().position(|known| *known == medium);
                if medium.len() > 64 || (known.is_none() && self.media.len() == Tier::OTHERS) {
                    self.refuse(line, "too_many_media", 1);
                    return None;
                }
                let number = known.unwrap_or_else(|| {
                    self.media.push(medium);
                    self.media.len() - 1
                });
                Tier::Other(number as u8)
            }
        })
    }

    fn refuse(&mut self, line: &str, reason: &'static str, count: usize) {
        if count > 0 {
            *self.refused.entry((line.to_owned(), reason)).or_default() += count as u64;
        }
    }

    /// The grid, once a store has shown it.
    pub fn grid(&self) -> Option<Grid> {
        self.grid
    }

    /// Blocks that wait for a parent.
    pub fn orphans(&self) -> u64 {
        self.model.orphans(RANK) as u64
    }

    /// Blocks held whose groups mean a prefix.
    pub fn blocks(&self) -> u64 {
        self.model.usage(RANK).unwrap().blocks
    }

    /// How much of a prompt is held.
    pub fn answer(&self, prompt: &Prompt) -> (u32, u32) {
        let Some(grid) = self.grid else { return (0, 0) };
        let contents = prompt.contents(grid);
        let all = self.model.match_chain(MODEL, grid, Chain::Content(&contents), Some(&[RANK]));
        let [RankMatch { blocks, device, .. }] = all[..] else { panic!("one rank was asked") };
        (blocks, device)
    }
}

fn le(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn group_of(event: &Value) -> Group {
    Group(event["group_idx"].as_u64().unwrap_or(0) as u32)
}

/// A hash as captures write it: a decimal number of either sign, or `0x` and the bytes.
fn hash(text: &str) -> EngineHash {
    match text.strip_prefix("0x") {
        Some(digits) => EngineHash::from_bytes(&hex(digits)),
        None => EngineHash::from_u64(text.parse::<i128>().unwrap() as u64),
    }
}

fn hashes_of(event: &Value) -> Vec<EngineHash> {
    event["block_hashes"].as_array().unwrap().iter().map(|text| hash(text.as_str().unwrap())).collect()
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn items_of(event: &Value) -> Vec<Vec<Item>> {
    let blocks = event["extra_keys"].as_array().into_iter().flatten();
    blocks.map(|block| block.as_array().into_iter().flatten().map(item).collect()).collect()
}

fn item(value: &Value) -> Item {
    match value {
        Value::Null => Item::Nil,
        Value::Bool(value) => Item::Bool(*value),
        Value::String(text) => Item::Text(text.clone()),
        Value::Array(items) => Item::List(items.iter().map(item).collect()),
        Value::Object(bytes) => Item::Bytes(hex(bytes["bytes"].as_str().unwrap())),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) => Item::Unsigned(n),
            (None, Some(n)) => Item::Signed(n),
            (None, None) => Item::Float(number.as_f64().unwrap()),
        },
    }
}

/// Where the salt stands in the first block of a prompt: the last bare text behind the LoRA name that no other block of
/// the event carries.
fn salt_position(blocks: &[Vec<Item>], lora: Option<&str>) -> Option<usize> {
    let (first, others) = blocks.split_first()?;
    let after = usize::from(begins_with_lora(first, lora));
    let is_salt =
        |i: &usize| matches!(first[*i], Item::Text(_)) && !others.iter().any(|block| block.contains(&first[*i]));
    (after..first.len()).rev().find(is_salt)
}

/// A block's extra keys without LoRA name and salt, in canonical form.
fn canonical(items: &[Item], lora: Option<&str>, salt_at: Option<usize>) -> Vec<u8> {
    let after = usize::from(begins_with_lora(items, lora));
    let kept = (after..items.len()).filter(|i| Some(*i) != salt_at);
    let mut out = Vec::new();
    extra_keys::encode(&kept.map(|i| items[i].clone()).collect::<Vec<_>>(), &mut out);
    out
}

fn begins_with_lora(items: &[Item], lora: Option<&str>) -> bool {
    lora.is_some() && matches!(items.first(), Some(Item::Text(text)) if Some(text.as_str()) == lora)
}
