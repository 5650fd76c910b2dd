//! The first of two phases: what must be known before plugins can be loaded.

use crate::node::{self, Node};
use crate::{Config, Problem, Text};
use std::path::{Path, PathBuf};

/// Plugin folders and the names the configuration expects plugins to know.
#[derive(Debug, Clone, Default)]
pub struct FirstLook {
    /// The plugin folders, relative ones resolved against the configuration file's folder.
    pub plugin_folders: Vec<PathBuf>,
    /// `data_dir`, resolved the same way.
    pub data_dir: PathBuf,
    /// Connectors of `connections`, each once.
    pub connectors: Vec<NamedAt>,
    /// Plugins' transforms, processors and error handlers, each once.
    pub functions: Vec<NamedAt>,
}

/// A name and where it was written first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAt {
    /// The name with its place.
    pub name: Text,
}

/// Reads what the loader needs. Lenient: what is missing or of the wrong type is left to
/// [`crate::parse`].
///
/// # Errors
/// The text is not YAML.
pub fn first_look(file: &Path, source: &str) -> Result<FirstLook, Problem> {
    let (root, _) = node::read(&file.display().to_string(), source)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let defaults = Config::default();
    let data_dir = root.get("data_dir").and_then(Node::text);
    let plugins: Vec<&Text> = match root.get("plugins") {
        Some(list) => list.items().iter().filter_map(Node::text).collect(),
        None => defaults.plugins.iter().collect(),
    };
    let mut look = FirstLook {
        plugin_folders: plugins.iter().map(|p| folder.join(p.as_str())).collect(),
        data_dir: folder.join(data_dir.unwrap_or(&defaults.data_dir).as_str()),
        ..FirstLook::default()
    };
    for (_, connection) in root.get("connections").map_or(&[][..], Node::entries) {
        note(&mut look.connectors, connection.get("connector"));
    }
    for (_, adapter) in root.get("adapters").map_or(&[][..], Node::entries) {
        handler(&mut look.functions, adapter);
        for route in adapter.get("routes").map_or(&[][..], Node::items) {
            handler(&mut look.functions, route);
            for (list, key) in [("transforms", "transform"), ("processors", "processor")] {
                for item in route.get(list).map_or(&[][..], Node::items) {
                    note(&mut look.functions, item.get(key));
                }
            }
            for send in route.get("send").map_or(&[][..], Node::items) {
                handler(&mut look.functions, send);
            }
        }
    }
    Ok(look)
}

fn handler(names: &mut Vec<NamedAt>, owner: &Node) {
    note(
        names,
        owner.get("on_failure").and_then(|h| h.get("handler")),
    );
}

fn note(names: &mut Vec<NamedAt>, node: Option<&Node>) {
    if let Some(name) = node.and_then(Node::text)
        && !names.iter().any(|known| known.name == *name)
    {
        names.push(NamedAt { name: name.clone() });
    }
}
