package keys

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Role is what a certificate lets its holder be.
type Role string

// The roles of a job.
const (
	Coordinator Role = "coordinator"
	Server      Role = "server"
	Worker      Role = "worker"
	Operator    Role = "operator" // a person who may change a running job, and stop it
	Viewer      Role = "viewer"   // a person who may see how a job does, and none of its rows
)

// Roles are all there are.
var Roles = []Role{Coordinator, Server, Worker, Operator, Viewer}

// scheme and the parts behind it make a name as SPIFFE has them: spiffe://JOB/ROLE/NAME.
const scheme = "spiffe"

// Identity is who a certificate says that its holder is.
type Identity struct {
	Domain string // whose keys these are: a job's, or all jobs' that share them. SPIFFE calls it the trust domain
	Role   Role
	Name   string // of this one holder, for people
}

// String is the identity as people read it, and as audit lines have it.
func (i Identity) String() string {
	if i.Role == "" {
		return "nobody"
	}
	return string(i.Role) + "/" + i.Name
}

// URL is the identity as a certificate has it.
func (i Identity) URL() *url.URL {
	return &url.URL{Scheme: scheme, Host: i.Domain, Path: "/" + string(i.Role) + "/" + i.Name}
}

// word is what a domain and a name are made of.
var word = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// Validate reports what is wrong with an identity, if anything.
func (i Identity) Validate() error {
	if !slices.Contains(Roles, i.Role) {
		return fmt.Errorf("a role %q; there are %s", i.Role, Known())
	}
	for what, text := range map[string]string{"job": i.Domain, "name": i.Name} {
		if !word.MatchString(text) {
			return fmt.Errorf("a %s %q; write at most 63 of a-z, 0-9, dot, hyphen and _, with a letter or digit at "+
				"both ends", what, text)
		}
	}
	return nil
}

// Known is the list of roles, for messages.
func Known() string {
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// ofURL reads an identity as URL writes it, and does not validate it.
func ofURL(u *url.URL) (i Identity, ok bool) {
	role, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	return Identity{Domain: u.Host, Role: Role(role), Name: name}, ok && u.Scheme == scheme
}

// ParseIdentity reads an identity as URL writes it.
func ParseIdentity(text string) (Identity, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Identity{}, fmt.Errorf("nobody: a name has the form %s://JOB/ROLE/NAME", scheme)
	}
	i, ok := ofURL(u)
	if !ok {
		return Identity{}, fmt.Errorf("nobody: a name has the form %s://JOB/ROLE/NAME", scheme)
	}
	return i, i.Validate()
}

// Of reads who a certificate says that its holder is.
func Of(c *x509.Certificate) (Identity, error) {
	var found []Identity
	for _, u := range c.URIs {
		if i, ok := ofURL(u); ok {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("its certificate has %d names of the form %s://JOB/ROLE/NAME, and needs one",
			len(found), scheme)
	}
	if err := found[0].Validate(); err != nil {
		return Identity{}, fmt.Errorf("its certificate is for %w", err)
	}
	return found[0], nil
}
