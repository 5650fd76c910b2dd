//! Who holds a port: for the message of an address that is in use.

use std::fs;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The process that listens on the port, as far as the system tells: "`nginx` (pid 12)".
pub fn holder(listen: &str) -> Option<String> {
    let port: u16 = listen.rsplit_once(':')?.1.parse().ok()?;
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // The handles of other users' processes can't be read.
        for handle in fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let target = fs::read_link(handle.path()).unwrap_or_default();
            if sockets
                .iter()
                .any(|socket| target.as_os_str() == socket.as_str())
            {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(if pid == std::process::id() {
                    "this host itself".to_owned()
                } else {
                    format!("`{}` (pid {pid})", name.trim())
                });
            }
        }
    }
    None
}

/// The inodes of the sockets that listen on a port, by `/proc/net/tcp`.
fn listening(table: &str, port: u16) -> Vec<String> {
    let end = format!(":{port:04X}");
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let local = fields.nth(1)?;
            let state = fields.nth(1)?;
            let inode = fields.nth(5)?;
            (local.ends_with(&end) && state == LISTENING).then(|| inode.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_by_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n\
             1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n\
             2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0\n";
        assert_eq!(listening(table, 8080), ["4711"]);
        assert!(listening(table, 8082).is_empty());
    }

    #[test]
    fn a_port_of_this_process_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(
            holder(&socket.local_addr().unwrap().to_string()).as_deref(),
            Some("this host itself")
        );
    }
}
