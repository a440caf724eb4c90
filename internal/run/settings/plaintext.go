package settings

import (
	"net"
	"net/url"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store/s3"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/transport"
)

// etcdScheme is the URL scheme of a registry in etcd. It is repeated here because this package is also built for the
// browser simulation, which cannot include the etcd client.
const etcdScheme = "etcd://"

// Services are the services that a job uses and that others may run: its registry and store, as the user wrote them,
// and its update log.
type Services struct {
	Registry, Store string // "": in the job's directory
	Log             *Log
}

// ExposureWarning returns a warning about the services that are on other machines and reached without encryption, or ""
// if there are none. If the job may not use such services, it returns an error instead. The job's keys do not help,
// because these services do not use them.
func (s *Services) ExposureWarning(of *Reach) (text string, err error) {
	found := s.unencrypted()
	if len(found) == 0 {
		return "", nil
	}
	where := "traffic is not encrypted on the way to " + strings.Join(found, " or to ")
	if !of.Insecure {
		return "", perdure.Usagef("%s: fix this as suggested, or use --insecure if you trust everyone on that network",
			where)
	}
	return "INSECURE: " + where + ": anyone on that network can read and change the data", nil
}

// unencrypted returns the services that are on other machines and reached without encryption, each with what to do
// about it.
func (s *Services) unencrypted() []string {
	var found []string
	if etcdInPlain(s.Registry) {
		at, _, _ := strings.Cut(s.Registry, "?")
		found = append(found, "the registry "+at+" (set its certificate authority with ?ca=FILE)")
	}
	if at, err := s3.Parse(s.Store); err == nil && strings.HasPrefix(at.Endpoint, "http://") &&
		!areLocal(strings.TrimPrefix(at.Endpoint, "http://")) {
		found = append(found, "the store "+at.Endpoint+" (write https://)")
	}
	if log := s.Log; log != nil && natsInPlain(log.NATS) && log.CA == "" && log.Cert == "" {
		found = append(found, "the update log "+updatelog.WithoutSecrets(log.NATS)+" (write tls://)")
	}
	return found
}

// etcdInPlain reports whether a registry is in etcd on another machine and is reached without TLS.
func etcdInPlain(registry string) bool {
	rest, is := strings.CutPrefix(registry, etcdScheme)
	rest, behind, _ := strings.Cut(rest, "?")
	query, err := url.ParseQuery(behind)
	hosts, _, _ := strings.Cut(rest, "/")
	return is && err == nil && !query.Has("ca") && !query.Has("cert") && !areLocal(strings.Split(hosts, ",")...)
}

// natsInPlain reports whether a log is on another machine and its address does not ask for TLS.
func natsInPlain(log string) bool {
	var hosts []string
	for one := range strings.SplitSeq(log, ",") {
		u, err := url.Parse(one)
		switch {
		case err == nil && u.Scheme == "nats":
			hosts = append(hosts, u.Host)
		case err != nil || u.Scheme == "":
			hosts = append(hosts, one) // one more host of the preceding address
		}
	}
	return strings.HasPrefix(log, "nats://") && !areLocal(hosts...)
}

// areLocal reports whether all hosts, with or without ports, are this machine.
func areLocal(hosts ...string) bool {
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
