package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
)

// socketKinds lists the kinds of sockets on which a peer listens, in the order of their file descriptors.
var socketKinds = []string{"tcp", "unix", socketTLS}

// socketTLS is TLS over TCP, with the settings that a job with keys uses.
const socketTLS = "tls"

// rawPeer is the process that serves raw exchanges.
type rawPeer struct {
	Addrs map[string]net.Addr // by kind of socket
	group *supervisor.Group
	files []*os.File
}

// startRawPeer opens the sockets and starts the process that serves them.
func startRawPeer(dir string) (p *rawPeer, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the perdure executable: %w", err)
	}
	p = &rawPeer{Addrs: map[string]net.Addr{}}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	for _, kind := range socketKinds {
		network, addr := kind, localrun.AnyPort
		switch kind {
		case "unix":
			addr = filepath.Join(dir, "raw")
		case socketTLS:
			network = "tcp"
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			return nil, fmt.Errorf("bench: listen for the raw exchange: %w", err)
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			return nil, fmt.Errorf("bench: listen for the raw exchange: %w", err)
		}
		p.Addrs[kind] = l.Addr()
		p.files = append(p.files, f)
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		if err := l.Close(); err != nil { // f keeps the socket open
			return nil, fmt.Errorf("bench: listen for the raw exchange: %w", err)
		}
	}
	if p.group, err = supervisor.NewGroup(supervisor.Options{}); err != nil {
		return nil, err
	}
	return p, p.group.Start(supervisor.Spec{
		Role: "bench-peer", Command: []string{exe, "bench-peer"}, Files: p.files,
		LogPath: filepath.Join(dir, "raw.log"),
	})
}

func (p *rawPeer) Close() {
	if p.group != nil {
		_ = p.group.Stop(context.Background()) // limited in time; the kernel ends the remaining processes with this one
	}
	for _, f := range p.files {
		_ = f.Close() // nothing was written
	}
	if path := p.Addrs["unix"]; path != nil {
		_ = os.Remove(path.String()) // another peer may use the path
	}
}
