package authority

import (
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/perdure/perdure/internal/proc/keys"
)

// A token admits a tool to the control API of a job with keys if the tool cannot present a certificate. It is a line of
// text with the holder's name and the expiry, signed by the job's signing key: a JSON Web Token (RFC 7519) with the
// algorithm ES256. To check a token, a process needs only the trusted certificates, and no key.

// audience is the audience of a token, so that tokens signed by the same key for other purposes are rejected.
const audience = "perdure control"

// TokenRoles lists the roles that a token can have. The other roles hold rows or lead the job, and must present
// certificates.
var TokenRoles = []keys.Role{keys.Viewer, keys.Operator}

// Token is the content of a token.
type Token struct {
	keys.Identity
	Serial *big.Int // identifies the token for revocation
	From   time.Time
	Until  time.Time
}

// String returns the holder and the serial number, for audit lines.
func (t *Token) String() string {
	return fmt.Sprintf("%s by token %s", t.Identity, keys.Serial(t.Serial))
}

// Validate returns an error if the content is invalid.
func (t *Token) Validate() error {
	if !slices.Contains(TokenRoles, t.Role) {
		return fmt.Errorf("invalid token role %q; choose %s or %s", t.Role, TokenRoles[0],
			TokenRoles[1])
	}
	return t.Identity.Validate()
}

// Sign returns the signed text of the token.
func (t *Token) Sign(key *ecdsa.PrivateKey) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodES256, jwt.RegisteredClaims{
		Subject: t.URL().String(), Audience: jwt.ClaimStrings{audience}, ID: keys.Serial(t.Serial),
		NotBefore: jwt.NewNumericDate(t.From), ExpiresAt: jwt.NewNumericDate(t.Until),
	}).SignedString(key)
}

// CheckToken verifies a token against a ring and returns its content. The error says why the token is rejected, without
// the token's text.
func CheckToken(text string, ring *keys.Ring) (*Token, error) {
	var said jwt.RegisteredClaims
	now := ring.Now()
	_, err := jwt.ParseWithClaims(text, &said, func(*jwt.Token) (any, error) { return signers(ring.Trusted(), now) },
		jwt.WithValidMethods([]string{jwt.SigningMethodES256.Alg()}), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(func() time.Time { return now }))
	if err != nil {
		return nil, explainToken(&said, err)
	}
	t, err := tokenOf(&said)
	if err != nil {
		return nil, err
	}
	switch {
	case t.Domain != ring.Identity().Domain:
		return nil, fmt.Errorf("the token is for job %s, not for %s", t.Domain, ring.Identity().Domain)
	case ring.IsRevoked(t.Serial):
		return nil, fmt.Errorf("the token %s is revoked", keys.Serial(t.Serial))
	}
	return t, nil
}

// TokenJob returns the job that a token names. It does not verify the token.
func TokenJob(text string) (string, error) {
	var said jwt.RegisteredClaims
	if _, _, err := jwt.NewParser().ParseUnverified(text, &said); err != nil {
		return "", errInvalidToken
	}
	t, err := tokenOf(&said)
	if err != nil {
		return "", err
	}
	return t.Domain, nil
}

var errInvalidToken = errors.New("invalid token; create one with perdure keys token")

// signers returns the keys of the valid certificates that may sign others.
func signers(trusted []*x509.Certificate, now time.Time) (any, error) {
	var set jwt.VerificationKeySet
	for _, c := range trusted {
		key, is := c.PublicKey.(*ecdsa.PublicKey)
		if is && c.IsCA && !now.Before(c.NotBefore) && !now.After(c.NotAfter) {
			set.Keys = append(set.Keys, key)
		}
	}
	return set, nil
}

// tokenOf returns the content of a token.
func tokenOf(said *jwt.RegisteredClaims) (*Token, error) {
	who, err := keys.ParseIdentity(said.Subject)
	if err != nil {
		return nil, fmt.Errorf("cannot identify the holder of the token: %w", err)
	}
	n, ok := new(big.Int).SetString(said.ID, 16)
	if !ok || n.Sign() <= 0 || said.ExpiresAt == nil {
		return nil, errors.New("the token has no serial number or no expiry")
	}
	t := &Token{Identity: who, Serial: n, Until: said.ExpiresAt.Time}
	return t, t.Validate()
}

// explainToken returns a helpful error for a rejected token.
func explainToken(said *jwt.RegisteredClaims, err error) error {
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return errInvalidToken
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenUnverifiable):
		return errors.New("the token is not signed by a trusted certificate: it belongs to another job, or is damaged")
	case errors.Is(err, jwt.ErrTokenExpired) && said.ExpiresAt != nil:
		return fmt.Errorf("the token expired at %s; create a new one with perdure keys token",
			said.ExpiresAt.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenNotValidYet) && said.NotBefore != nil:
		return fmt.Errorf("the token is not valid before %s; check that the clocks of both machines agree",
			said.NotBefore.UTC().Format(time.RFC3339))
	}
	return errors.New("the token is not for the control API of a job; create one with perdure keys token")
}
