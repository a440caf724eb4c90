package keys

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Role is the role that a certificate grants to its holder.
type Role string

// The roles of a job.
const (
	Coordinator Role = "coordinator"
	Server      Role = "server"
	Worker      Role = "worker"
	Operator    Role = "operator" // a person who may change and stop a running job
	Viewer      Role = "viewer"   // a person who may see the state of a job, but not its rows
)

// Roles lists all roles.
var Roles = []Role{Coordinator, Server, Worker, Operator, Viewer}

// scheme is the URI scheme of a SPIFFE ID: spiffe://JOB/ROLE/NAME.
const scheme = "spiffe"

// Identity is the identity in a certificate.
type Identity struct {
	Domain string // job, or group of jobs, that shares these keys; SPIFFE calls it the trust domain
	Role   Role
	Name   string // name of the holder, for people
}

// String returns the identity for messages and audit lines.
func (i Identity) String() string {
	if i.Role == "" {
		return "nobody"
	}
	return string(i.Role) + "/" + i.Name
}

// DirName returns the name of the directory with an identity's keys. The commands that renew and revoke use this name.
func (i Identity) DirName() string {
	if i.Name == string(i.Role) {
		return i.Name
	}
	return string(i.Role) + "-" + i.Name
}

// URL returns the identity as written in a certificate.
func (i Identity) URL() *url.URL {
	return &url.URL{Scheme: scheme, Host: i.Domain, Path: "/" + string(i.Role) + "/" + i.Name}
}

// namePattern matches valid domains and names.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// Validate returns an error if the identity is invalid.
func (i Identity) Validate() error {
	if !slices.Contains(Roles, i.Role) {
		return fmt.Errorf("unknown role %q; roles: %s", i.Role, RoleNames())
	}
	for what, text := range map[string]string{"job": i.Domain, "name": i.Name} {
		if !namePattern.MatchString(text) {
			return fmt.Errorf("invalid %s %q; use at most 63 characters (a-z, 0-9, dot, hyphen, _), with a letter or "+
				"digit at each end", what, text)
		}
	}
	return nil
}

// RoleNames returns the list of roles for messages.
func RoleNames() string {
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// identityFromURL parses an identity written by URL without validating it.
func identityFromURL(u *url.URL) (i Identity, ok bool) {
	role, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	return Identity{Domain: u.Host, Role: Role(role), Name: name}, ok && u.Scheme == scheme
}

// ParseIdentity parses an identity written by URL.
func ParseIdentity(text string) (Identity, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Identity{}, fmt.Errorf("invalid identity: it must have the form %s://JOB/ROLE/NAME", scheme)
	}
	i, ok := identityFromURL(u)
	if !ok {
		return Identity{}, fmt.Errorf("invalid identity: it must have the form %s://JOB/ROLE/NAME", scheme)
	}
	return i, i.Validate()
}

// IdentityOf returns the identity in a certificate.
func IdentityOf(c *x509.Certificate) (Identity, error) {
	var found []Identity
	for _, u := range c.URIs {
		if i, ok := identityFromURL(u); ok {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("its certificate has %d names of the form %s://JOB/ROLE/NAME instead of one",
			len(found), scheme)
	}
	if err := found[0].Validate(); err != nil {
		return Identity{}, fmt.Errorf("cannot identify the holder of its certificate: %w", err)
	}
	return found[0], nil
}
