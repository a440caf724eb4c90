package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
)

// Scheme is the URL scheme of an address.
const Scheme = "etcd"

// Address is the location of a registry, with the client's credentials.
type Address struct {
	hosts         []string // HOST:PORT of each member, IPv6 in brackets
	prefix        string   // prefix of all keys, without slashes at the ends
	ca, cert, key string   // file names; "": none
}

const addressForm = "etcd://HOST:PORT,HOST:PORT/PREFIX?ca=FILE&cert=FILE&key=FILE"

var (
	hostName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	prefixPart = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// Parse parses an address. It returns a one-line perdure.ErrUsage that contains no secrets: an address must not have a
// user or password, and the error never repeats the whole text.
func Parse(text string) (Address, error) {
	a, err := parse(text)
	if err != nil {
		return Address{}, perdure.Usagef("invalid registry address, expected %s: %w", addressForm, err)
	}
	return a, nil
}

// parse does not use package net/url, which supports only one host.
func parse(text string) (a Address, err error) {
	rest, is := strings.CutPrefix(text, Scheme+"://")
	if !is {
		return a, errors.New("it does not start with etcd://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, prefix, _ := strings.Cut(rest, "/")
	if strings.Contains(rest, "@") {
		return a, errors.New("users and passwords (@) are not supported; use a client certificate (cert and key)")
	}
	if a.hosts, err = parseHosts(hosts); err != nil {
		return a, err
	}
	if a.prefix = strings.TrimSuffix(prefix, "/"); a.prefix == "" {
		return a, errors.New("it has no prefix; choose one for each job, as in etcd://HOST:PORT/perdure/JOB")
	}
	for part := range strings.SplitSeq(a.prefix, "/") {
		if !prefixPart.MatchString(part) || part == "." || part == ".." {
			return a, fmt.Errorf("invalid prefix %q; use names of letters, digits, dots, _ and -, "+
				"separated by single slashes", a.prefix)
		}
	}
	return a, a.parseQuery(query)
}

func parseHosts(text string) (hosts []string, err error) {
	if text == "" {
		return nil, errors.New("it has no host")
	}
	seen := map[string]bool{}
	for one := range strings.SplitSeq(text, ",") {
		host, port, err := net.SplitHostPort(one)
		n, bad := strconv.ParseUint(port, 10, 16)
		address := strings.HasPrefix(one, "[")
		switch {
		case one == "":
			return nil, errors.New("it has an empty host; separate hosts by single commas")
		case strings.Count(one, ":") > 1 && !address:
			return nil, fmt.Errorf("%q is not HOST:PORT; put an IPv6 address in brackets, as in [::1]:2379", one)
		case err != nil || bad != nil || n == 0:
			return nil, fmt.Errorf("%q has no port from 1 to 65535; etcd's default is 2379", one)
		case address && net.ParseIP(host) == nil, !address && !hostName.MatchString(host):
			return nil, fmt.Errorf("invalid host %q", host)
		case seen[one]:
			return nil, fmt.Errorf("host %s is listed twice", one)
		}
		seen[one] = true
		hosts = append(hosts, one)
	}
	return hosts, nil
}

func (a *Address) parseQuery(text string) error {
	query, err := url.ParseQuery(text)
	if err != nil {
		return errors.New("the query must be ca=FILE, cert=FILE and key=FILE, separated by &")
	}
	known := map[string]*string{"ca": &a.ca, "cert": &a.cert, "key": &a.key}
	for name, values := range query {
		to := known[name]
		switch {
		case to == nil:
			return fmt.Errorf("unknown query parameter %q; use ca, cert and key", name)
		case len(values) > 1:
			return fmt.Errorf("%s is given twice", name)
		case values[0] == "":
			return fmt.Errorf("%s is empty; set it to the path of a file", name)
		}
		*to = values[0]
	}
	if (a.cert == "") != (a.key == "") {
		return errors.New("cert and key belong together; give both, or neither")
	}
	return nil
}

// String returns the address for messages, without the credential files.
func (a Address) String() string { return Scheme + "://" + strings.Join(a.hosts, ",") + "/" + a.prefix }

// Prefix returns the prefix of all keys, without slashes at the ends.
func (a Address) Prefix() string { return a.prefix }

// tls returns the client's TLS configuration, or nil for a connection without TLS.
func (a Address) tls() (*tls.Config, error) {
	if a.ca == "" && a.cert == "" {
		return nil, nil
	}
	if err := disk.CheckRegular(a.ca, a.cert, a.key); err != nil {
		return nil, perdure.Usagef("%s: ca, cert or key: %w", a, err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12} // etcd's operator chooses the TLS version of the server
	if a.ca != "" {
		text, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, perdure.Usagef("%s: ca: %w", a, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, perdure.Usagef("%s: ca: %s has no certificate", a, a.ca)
		}
	}
	if a.cert != "" {
		pair, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, perdure.Usagef("%s: cert and key: %w", a, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func init() {
	registry.Register(Scheme, registry.Driver{
		Parse: func(text string) (shown, identity string, err error) {
			a, err := Parse(text)
			return a.String(), a.Prefix(), err
		},
		Open: func(ctx context.Context, text string) (registry.Registry, error) {
			r, err := Open(ctx, text)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
	})
}
