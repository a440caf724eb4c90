package settings

import (
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store/s3"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/transport"
)

// etcdScheme is how the address of a registry in etcd begins. The client itself is not for a browser, where the
// simulation runs, too, which knows settings.
const etcdScheme = "etcd://"

// Services are what a job talks to that may be others': its registry and its store, as they were written, and its
// update log.
type Services struct {
	Registry, Store string // "": in the job's folder
	Log             *Log
}

// Exposed says which of the services are on other machines and reached without encryption, and refuses them where
// that is not wished; "": none is. Keys are of no help there: they are the job's, and these are others'.
func (s *Services) Exposed(of *Reach) (text string, err error) {
	found := s.inPlain()
	if len(found) == 0 {
		return "", nil
	}
	where := "nothing is encrypted on the way to " + strings.Join(found, ", nor to ")
	if !of.Insecure {
		return "", fmt.Errorf("%w: %s: do that, or write --insecure if you trust everybody on that network",
			perdure.ErrUsage, where)
	}
	return "INSECURE: " + where + ": whoever is on that network can read and change what is there", nil
}

// inPlain are the services that are on other machines and reached without encryption, each with what to do.
func (s *Services) inPlain() []string {
	var found []string
	if etcdInPlain(s.Registry) {
		at, _, _ := strings.Cut(s.Registry, "?")
		found = append(found, "its registry "+at+" (name the authority, by ?ca=FILE)")
	}
	if at, err := s3.Parse(s.Store); err == nil && strings.HasPrefix(at.Endpoint, "http://") &&
		!near(strings.TrimPrefix(at.Endpoint, "http://")) {
		found = append(found, "its store "+at.Endpoint+" (write https://)")
	}
	if log := s.Log; log != nil && natsInPlain(log.NATS) && log.CA == "" && log.Cert == "" {
		found = append(found, "its update log "+updatelog.WithoutSecrets(log.NATS)+" (write tls://)")
	}
	return found
}

// etcdInPlain reports whether a registry is in etcd on another machine, and reached without TLS.
func etcdInPlain(registry string) bool {
	rest, is := strings.CutPrefix(registry, etcdScheme)
	rest, behind, _ := strings.Cut(rest, "?")
	query, err := url.ParseQuery(behind)
	hosts, _, _ := strings.Cut(rest, "/")
	return is && err == nil && !query.Has("ca") && !query.Has("cert") && !near(strings.Split(hosts, ",")...)
}

// natsInPlain reports whether a log is on another machine, and its address does not ask for TLS.
func natsInPlain(log string) bool {
	var hosts []string
	for one := range strings.SplitSeq(log, ",") {
		u, err := url.Parse(one)
		switch {
		case err == nil && u.Scheme == "nats":
			hosts = append(hosts, u.Host)
		case err != nil || u.Scheme == "":
			hosts = append(hosts, one) // one more of those before
		}
	}
	return strings.HasPrefix(log, "nats://") && !near(hosts...)
}

// near reports whether all of some hosts, with their ports or without, are this machine.
func near(hosts ...string) bool {
	for _, at := range hosts {
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			host = strings.Trim(at, "[]")
		}
		if host != "localhost" && !transport.IsLoopback(net.JoinHostPort(host, "1")) {
			return false
		}
	}
	return true
}
