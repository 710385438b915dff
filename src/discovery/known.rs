//! The objects that are known, and the engines that they tell of. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::object::{Sighting, Told};

/// What is known of one namespace, by object.
#[derive(Debug, Default)]
pub(super) struct Known {
    objects: BTreeMap<String, Told>,
}

// === impl Known ===

impl Known {
    /// Objects that are known.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// A whole list: what is not in it is gone. Whether anything has changed.
    pub fn list(&mut self, objects: BTreeMap<String, Told>) -> bool {
        let changed = self.objects != objects;
        self.objects = objects;
        changed
    }

    /// One object was made or changed. Whether anything has changed that matters here.
    pub fn apply(&mut self, name: String, told: Told) -> bool {
        self.objects.insert(name, told.clone()).as_ref() != Some(&told)
    }

    /// One object was deleted. Whether it was known.
    pub fn delete(&mut self, name: &str) -> bool {
        self.objects.remove(name).is_some()
    }

    /// The engines, each once, by name and uid; of several sightings of one pod (it is in a slice for each address
    /// family) the first with an address, in the order of their objects.
    pub fn engines(&self) -> Vec<&Sighting> {
        let mut engines: BTreeMap<(&str, &str), &Sighting> = BTreeMap::new();
        for sighting in self.objects.values().flat_map(|told| &told.sightings) {
            let known = engines.entry((&sighting.name, &sighting.uid)).or_insert(sighting);
            if known.address.is_none() {
                *known = sighting;
            }
        }
        engines.into_values().collect()
    }

    /// What of the objects cannot be used, each once.
    pub fn refused(&self) -> BTreeSet<&str> {
        self.objects.values().flat_map(|told| &told.refused).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(name: &str, uid: &str, address: Option<&str>) -> Sighting {
        Sighting {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            address: address.map(str::to_owned),
            ready: true,
            annotations: BTreeMap::new(),
        }
    }

    fn told(sightings: &[Sighting]) -> Told {
        Told { sightings: sightings.to_vec(), refused: Vec::new() }
    }

    #[test]
    fn a_list_takes_away_what_is_not_in_it() {
        let mut known = Known::default();
        assert!(known.apply("a".to_owned(), told(&[sighting("a", "1", None)])));
        assert!(known.list([("b".to_owned(), told(&[sighting("b", "2", None)]))].into()));
        assert_eq!(known.engines().iter().map(|engine| engine.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(!known.delete("a"));
        assert!(known.delete("b"));
        assert!(known.engines().is_empty());
    }

    #[test]
    fn an_event_that_says_nothing_new_changes_nothing() {
        let mut known = Known::default();
        let pod = told(&[sighting("a", "1", Some("10.0.0.1"))]);
        assert!(known.apply("a".to_owned(), pod.clone()));
        assert!(!known.apply("a".to_owned(), pod.clone()));
        assert!(!known.list([("a".to_owned(), pod)].into()));
    }

    #[test]
    fn a_pod_in_two_slices_is_one_engine_at_the_address_of_the_first() {
        let mut known = Known::default();
        known.apply("vllm-v6".to_owned(), told(&[sighting("a", "1", Some("fd00::1"))]));
        known.apply("vllm-v4".to_owned(), told(&[sighting("a", "1", Some("10.0.0.1")), sighting("b", "2", None)]));
        let engines: Vec<_> = known.engines().into_iter().map(|engine| engine.address.as_deref()).collect();
        assert_eq!(engines, [Some("10.0.0.1"), None]);
        // Its other slice is enough to keep it.
        known.delete("vllm-v4");
        assert_eq!(known.engines()[0].address.as_deref(), Some("fd00::1"));
    }
}
