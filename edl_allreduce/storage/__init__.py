"""Object storage: `url` names a place, `remote` asks for it, `blocks` keeps what was read on this machine."""
