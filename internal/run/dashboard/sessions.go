package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// lifetime is how long a browser stays admitted.
const lifetime = 30 * 24 * time.Hour

// sessions admits browsers. A browser exchanges a token for a cookie: the token of a link, which is valid once, or in a
// job with keys a token of perdure keys token.
//
// The cookie of a link is ROLE.EXPIRY.MAC, which any process with the same key can check. The cookie of a token is the
// token, so that its revocation takes effect immediately.
type sessions struct {
	job     string
	key     perdure.Secret
	ring    *keys.Ring // nil: the job has no keys
	now     func() time.Time
	changed func() // the link was used, and there is a new one

	mu   sync.Mutex     // guards link
	link perdure.Secret // token that has not been used
}

// errNoSession means that a browser has no valid cookie.
var errNoSession = errors.New("open the link that the run has printed; perdure dashboard DIR prints another one")

// unused returns the token of the next link.
func (s *sessions) unused() perdure.Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// take invalidates the link if a token belongs to it.
func (s *sessions) take(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.link.Matches(perdure.Secret(token)) {
		return false
	}
	s.link = keys.NewSecret()
	return true
}

// exchange returns the cookie for a token.
func (s *sessions) exchange(token string) (*http.Cookie, error) {
	c := &http.Cookie{
		Name: s.cookieName(), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		MaxAge: int(lifetime / time.Second),
	}
	if s.take(token) {
		s.changed()
		c.Value = s.sign(keys.Operator, s.now().Add(lifetime))
		return c, nil
	}
	if s.ring == nil {
		return nil, errors.New("this link has been used or belongs to another run; perdure dashboard DIR prints " +
			"another one")
	}
	if _, err := authority.CheckToken(token, s.ring); err != nil {
		return nil, err
	}
	c.Value = token
	return c, nil
}

// cookieName contains the job, because browsers send a cookie to all ports of a host.
func (s *sessions) cookieName() string { return "perdure-" + s.job }

// role returns the role of a request.
func (s *sessions) role(r *http.Request) (keys.Role, error) {
	c, err := r.Cookie(s.cookieName())
	if err != nil {
		return "", errNoSession
	}
	role, rest, _ := strings.Cut(c.Value, ".")
	expiry, _, _ := strings.Cut(rest, ".")
	if at, err := strconv.ParseInt(expiry, 10, 64); err == nil {
		until := time.Unix(at, 0)
		if !hmac.Equal([]byte(c.Value), []byte(s.sign(keys.Role(role), until))) || !s.now().Before(until) {
			return "", errNoSession
		}
		return keys.Role(role), nil
	}
	if s.ring == nil {
		return "", errNoSession
	}
	t, err := authority.CheckToken(c.Value, s.ring)
	if err != nil {
		return "", err
	}
	return t.Role, nil
}

// sign returns the cookie of a role.
func (s *sessions) sign(role keys.Role, until time.Time) string {
	text := fmt.Sprintf("%s.%d", role, until.Unix())
	m := hmac.New(sha256.New, []byte(s.key.Reveal()))
	fmt.Fprintf(m, "perdure dashboard\x00%s\x00%s", s.job, text)
	return text + "." + hex.EncodeToString(m.Sum(nil))
}
