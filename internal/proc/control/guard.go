package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/perdure/perdure"
	controlv1 "github.com/perdure/perdure/internal/proc/control/v1"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// AlivePath is where whoever looks after the coordinator asks whether it is alive. It needs
// no secret, and its answer says nothing else.
const AlivePath = "/alive"

// Gate says who may call a control API.
type Gate struct {
	Secret perdure.Secret
	Addrs  []string                    // by which it is called
	Alive  func(context.Context) error // returns as soon as the coordinator shows that it is
	Ring   *keys.Ring                  // the coordinator's; nil: the job has no keys
	Log    *slog.Logger                // hears who has asked for a change; nil: nobody does
	// Refused receives lines about refused calls, which callers can make as often as they like; nil: Log does.
	Refused *slog.Logger
}

// Guard lets only those through who show the secret, in the header Authorization: Bearer,
// and who name this machine, or one of its addresses, as the Host: a page of
// another origin, in a browser of this machine, does neither. Where callers show certificates, or tokens, what each may
// do follows from its role instead. To AlivePath it answers as
// soon as Alive returns, whose context ends with the call.
func (g *Gate) Guard(h http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == AlivePath {
			if g.Alive(r.Context()) != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		who, err := g.admits(r)
		g.note(r, who, err)
		if err != nil { // before anything of the request is read
			status, code := http.StatusForbidden, connect.CodePermissionDenied
			if errors.As(err, &unknownError{}) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				status, code = http.StatusUnauthorized, connect.CodeUnauthenticated
			}
			if !refuse.IsSupported(r) {
				http.Error(w, err.Error(), status)
				return
			}
			_ = refuse.Write(w, r, connect.NewError(code, err)) // its caller has gone
			return
		}
		h.ServeHTTP(w, r)
	})
}

// note writes down who asks for a change, and whether that one may.
func (g *Gate) note(r *http.Request, who string, refused error) {
	if g.Log == nil || slices.Contains(looks, r.URL.Path) {
		return
	}
	call := "unknown" // the path is the caller's to choose
	if slices.Contains(changes, r.URL.Path) {
		call = path.Base(r.URL.Path)
	}
	if refused != nil {
		cmp.Or(g.Refused, g.Log).Warn("refused a call of the control API", "call", call, "who", who, "from",
			r.RemoteAddr, "err", refused)
		return
	}
	g.Log.Info("a call of the control API", "call", call, "who", who, "from", r.RemoteAddr)
}

// admits reports who calls, as people read it, and why that one may not.
func (g *Gate) admits(r *http.Request) (who string, err error) {
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return "a page", errors.New("the control API answers no pages of other origins")
		}
	}
	if r.TLS != nil {
		if g.Ring != nil && slices.ContainsFunc(r.TLS.PeerCertificates, g.Ring.Revoked) { // since it has connected
			return named(r), errors.New("the caller's certificate is revoked")
		}
		return g.knows(r)
	}
	if !here(r.Host, g.Addrs) {
		return "somebody", errors.New("the control API is called by the address of its machine, not by another name")
	}
	if err := showsSecret(r, g.Secret); err != nil {
		return "somebody", err
	}
	return "a holder of the run's secret", nil
}

func showsSecret(r *http.Request, secret perdure.Secret) error {
	shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case secret == "", is && secret.Admits(perdure.Secret(shown)):
		return nil
	case !is:
		return errors.New("the secret is missing: it is in the file secret in the run's folder, which " +
			"PERDURE_SECRET_FILE names; show it as Authorization: Bearer SECRET")
	}
	return errors.New("the secret is not this run's: that is in the file secret in its folder, which " +
		"PERDURE_SECRET_FILE names")
}

// looks are the calls that change nothing.
var looks = []string{controlv1.ControlStatusProcedure, controlv1.ControlViewProcedure}

// changes are the others.
var changes = []string{
	controlv1.ControlFaultProcedure, controlv1.ControlScaleProcedure, controlv1.ControlDrainProcedure,
	controlv1.ControlStopProcedure,
}

// unknownError is why nobody can say who calls a job with keys: there is no token, or not one that says it.
type unknownError struct{ error }

// named is whom the log names of a caller with a certificate, whatever that is good for.
func named(r *http.Request) string {
	is, err := keys.Of(r.TLS.PeerCertificates[0])
	if err != nil {
		return "somebody"
	}
	return is.String()
}

// knows reports whose certificate or token a caller shows, and whether it lets it do what it asks for.
func (g *Gate) knows(r *http.Request) (who string, err error) {
	if len(r.TLS.PeerCertificates) > 0 { // a client with a certificate may show the run's secret, too
		is, err := keys.Of(r.TLS.PeerCertificates[0])
		if err != nil {
			return "somebody", err
		}
		return is.String(), may(is, r)
	}
	shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !is || g.Ring == nil {
		return "somebody", unknownError{errors.New("the control API of a job with keys asks for a certificate or a " +
			"token: perdure keys new makes certificates of an operator and of a viewer, and perdure keys token a " +
			"token")}
	}
	t, err := authority.CheckToken(shown, g.Ring)
	if err != nil {
		return "somebody", unknownError{err}
	}
	return t.String(), may(t.Identity, r)
}

// may reports why somebody may not do what he asks for; nil: he may.
func may(is keys.Identity, r *http.Request) error {
	if is.Role == keys.Operator || slices.Contains(looks, r.URL.Path) {
		return nil
	}
	return fmt.Errorf("%s may look at the job, and change nothing: that is for an operator", is)
}

// here reports whether a Host is this machine, or one of its addresses.
func here(host string, addrs []string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return slices.Contains(addrs, host) || name == "localhost" || ip != nil && ip.IsLoopback()
}
