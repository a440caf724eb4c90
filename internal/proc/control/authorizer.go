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

// AlivePath is the path of the coordinator's liveness check. It requires no secret, and its answer reveals nothing
// else.
const AlivePath = "/alive"

// Authorizer controls access to a control API.
type Authorizer struct {
	Secret perdure.Secret
	Addrs  []string                    // addresses by which clients call it
	Alive  func(context.Context) error // returns once the coordinator has shown that it is alive
	Ring   *keys.Ring                  // the coordinator's keys; nil: the job has none
	Log    *slog.Logger                // logs calls that change the job; may be nil
	// Refused receives messages about rejected calls, which callers can trigger as often as they like; nil: Log
	// receives them.
	Refused *slog.Logger
}

// Guard returns a handler that passes authorized calls to h.
//
// Without TLS, a caller must present the secret in the header Authorization: Bearer, and its Host header must name this
// machine or one of its addresses. A web page of another origin in a browser of this machine can do neither. With TLS,
// callers present certificates or tokens, and their role determines what they may do.
//
// A request to AlivePath is answered as soon as Alive returns; the context of Alive ends with the request.
func (g *Authorizer) Guard(h http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == AlivePath {
			if g.Alive(r.Context()) != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		who, err := g.authenticate(r)
		g.logCall(r, who, err)
		if err != nil { // rejected before the request is read
			status, code := http.StatusForbidden, connect.CodePermissionDenied
			if errors.As(err, &unknownError{}) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				status, code = http.StatusUnauthorized, connect.CodeUnauthenticated
			}
			if !refuse.IsSupported(r) {
				http.Error(w, err.Error(), status)
				return
			}
			_ = refuse.Write(w, r, connect.NewError(code, err)) // the caller has disconnected
			return
		}
		h.ServeHTTP(w, r)
	})
}

// logCall logs calls that change the job, and whether they were allowed.
func (g *Authorizer) logCall(r *http.Request, who string, refused error) {
	if g.Log == nil || slices.Contains(readCalls, r.URL.Path) {
		return
	}
	call := "unknown" // callers may invent any path
	if slices.Contains(changeCalls, r.URL.Path) {
		call = path.Base(r.URL.Path)
	}
	if refused != nil {
		cmp.Or(g.Refused, g.Log).Warn("rejected a control API call", "call", call, "who", who, "from",
			r.RemoteAddr, "err", refused)
		return
	}
	g.Log.Info("control API call", "call", call, "who", who, "from", r.RemoteAddr)
}

// authenticate returns the caller's name for the log, and an error if the call is not allowed.
func (g *Authorizer) authenticate(r *http.Request) (who string, err error) {
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return "a page", errors.New("the control API does not accept calls from web pages of other origins")
		}
	}
	if r.TLS != nil {
		// Revoked since the connection was opened.
		if g.Ring != nil && slices.ContainsFunc(r.TLS.PeerCertificates, g.Ring.Revoked) {
			return certificateName(r), errors.New("the caller's certificate is revoked")
		}
		return g.authorize(r)
	}
	if !isLocalHost(r.Host, g.Addrs) {
		return "somebody", errors.New("invalid Host header; use the machine's address to call the control API")
	}
	if err := checkSecret(r, g.Secret); err != nil {
		return "somebody", err
	}
	return "a holder of the run's secret", nil
}

func checkSecret(r *http.Request, secret perdure.Secret) error {
	shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case secret == "", is && secret.Matches(perdure.Secret(shown)):
		return nil
	case !is:
		return errors.New("the secret is missing: set PERDURE_SECRET_FILE to the path of the run's secret file, " +
			"or send the header Authorization: Bearer SECRET")
	}
	return errors.New("the secret belongs to another run: set PERDURE_SECRET_FILE to the path of the run's secret file")
}

// readCalls lists the calls that change nothing.
var readCalls = []string{controlv1.ControlStatusProcedure, controlv1.ControlViewProcedure}

// changeCalls lists the calls that change the job.
var changeCalls = []string{
	controlv1.ControlFaultProcedure, controlv1.ControlScaleProcedure, controlv1.ControlDrainProcedure,
	controlv1.ControlStopProcedure,
}

// unknownError means that a caller of a job with keys presents no valid certificate or token.
type unknownError struct{ error }

// certificateName returns the name in the caller's certificate for the log, even if the certificate is not valid.
func certificateName(r *http.Request) string {
	is, err := keys.IdentityOf(r.TLS.PeerCertificates[0])
	if err != nil {
		return "somebody"
	}
	return is.String()
}

// authorize returns the name in the caller's certificate or token, and an error if its role does not allow the call.
func (g *Authorizer) authorize(r *http.Request) (who string, err error) {
	// The certificate takes precedence over the run's secret, which may be sent as well.
	if len(r.TLS.PeerCertificates) > 0 {
		is, err := keys.IdentityOf(r.TLS.PeerCertificates[0])
		if err != nil {
			return "somebody", err
		}
		return is.String(), checkPermission(is, r)
	}
	shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !is || g.Ring == nil {
		return "somebody", unknownError{errors.New("the control API of a job with keys requires a certificate or a " +
			"token; use an operator's or viewer's certificate from perdure keys new, or a token from perdure keys " +
			"token")}
	}
	t, err := authority.CheckToken(shown, g.Ring)
	if err != nil {
		return "somebody", unknownError{err}
	}
	return t.String(), checkPermission(t.Identity, r)
}

// checkPermission returns an error if the holder of an identity is not allowed to make the call.
func checkPermission(is keys.Identity, r *http.Request) error {
	if is.Role == keys.Operator || slices.Contains(readCalls, r.URL.Path) {
		return nil
	}
	return fmt.Errorf("%s may view the job, but only an operator may change it", is)
}

// isLocalHost reports whether a Host header names this machine or one of its addresses.
func isLocalHost(host string, addrs []string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return slices.Contains(addrs, host) || name == "localhost" || ip != nil && ip.IsLoopback()
}
