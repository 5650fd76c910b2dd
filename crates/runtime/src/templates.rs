//! The templates of a running send, and writes that were accepted under other ones.
//!
//! A write brings the text of each template along, named by its setting. Where a reload, or another file at
//! the next start, changed which settings are templates, each keeps its own text; a setting that was no
//! template then is rendered now, from the message that the write has.

use bytes::Bytes;
use consign_pipeline::{Program, StoredWrite};
use std::sync::Arc;

/// The templates of one send. Two are alike where they say the same.
#[derive(Debug, Clone, Default)]
pub struct Templates {
    settings: Bytes,
    sources: Vec<String>,
    send: Option<(Arc<Program>, usize, usize)>,
}

impl PartialEq for Templates {
    fn eq(&self, other: &Self) -> bool {
        (&self.settings, &self.sources) == (&other.settings, &other.sources)
    }
}

impl Eq for Templates {}

impl Templates {
    /// Of this send of this route.
    pub fn of(program: &Arc<Program>, route: usize, send: usize) -> Self {
        let compiled = program.route(route).and_then(|route| route.sends.get(send));
        let Some(compiled) = compiled else {
            return Self::default();
        };
        let sources = compiled.templates.iter();
        Self {
            settings: compiled.settings.clone(),
            sources: sources.map(|one| one.source.to_string()).collect(),
            send: Some((Arc::clone(program), route, send)),
        }
    }

    /// Gives a write the texts of these templates, its own wherever it has them.
    ///
    /// # Errors
    /// A template that it has no text for fails for its message.
    pub fn fit(&self, write: &mut StoredWrite) -> Result<(), String> {
        if write.has_slots_of(&self.settings) {
            return Ok(());
        }
        let Some((program, route, send)) = &self.send else {
            return Err("its send is not known".to_owned());
        };
        let own = write.slots_for(&self.settings);
        let mut rendered = if own.iter().all(Option::is_some) {
            consign_pipeline::Rendered {
                order: consign_pipeline::OrderKey::Strict,
                slots: vec![String::new(); own.len()],
                settings: self.settings.clone(),
            }
        } else {
            program
                .render_send(*route, *send, &write.message())
                .map_err(|error| error.message)?
        };
        for (slot, own) in rendered.slots.iter_mut().zip(own) {
            if let Some(own) = own {
                *slot = own;
            }
        }
        write.set_slots(&rendered);
        Ok(())
    }
}
