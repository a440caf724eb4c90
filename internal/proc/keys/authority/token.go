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

// A token admits a tool to the control API of a job with keys if the tool cannot show a certificate. It is a line of
// text that names its holder and its expiry, signed by the key that signs the job's certificates: a JSON Web Token (RFC
// 7519) with the algorithm ES256. To check one, a process needs the certificates that it trusts, and no key.

// audience is whom a token is for: what the same key signs for others is none of ours.
const audience = "perdure control"

// TokenRoles are those that a token can have. The others hold rows or lead the job, and show certificates.
var TokenRoles = []keys.Role{keys.Viewer, keys.Operator}

// Token is what a token says.
type Token struct {
	keys.Identity
	Serial *big.Int // by which it is revoked, as a certificate is by its own
	From   time.Time
	Until  time.Time
}

// String is who shows it, as audit lines have it.
func (t *Token) String() string {
	return fmt.Sprintf("%s by token %s", t.Identity, keys.Serial(t.Serial))
}

// Validate reports what is wrong with what it says, if anything.
func (t *Token) Validate() error {
	if !slices.Contains(TokenRoles, t.Role) {
		return fmt.Errorf("a token for the role %q; there are tokens for %s and %s", t.Role, TokenRoles[0],
			TokenRoles[1])
	}
	return t.Identity.Validate()
}

// Sign makes the text.
func (t *Token) Sign(key *ecdsa.PrivateKey) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodES256, jwt.RegisteredClaims{
		Subject: t.URL().String(), Audience: jwt.ClaimStrings{audience}, ID: keys.Serial(t.Serial),
		NotBefore: jwt.NewNumericDate(t.From), ExpiresAt: jwt.NewNumericDate(t.Until),
	}).SignedString(key)
}

// CheckToken reports who shows a token to the holder of a ring. An error says why nobody is let in with it, and has
// nothing of the text.
func CheckToken(text string, ring *keys.Ring) (*Token, error) {
	var said jwt.RegisteredClaims
	now := ring.Now()
	_, err := jwt.ParseWithClaims(text, &said, func(*jwt.Token) (any, error) { return signers(ring.Trusted(), now) },
		jwt.WithValidMethods([]string{jwt.SigningMethodES256.Alg()}), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(func() time.Time { return now }))
	if err != nil {
		return nil, explainToken(&said, err)
	}
	t, err := of(&said)
	if err != nil {
		return nil, err
	}
	switch {
	case t.Domain != ring.Identity().Domain:
		return nil, fmt.Errorf("the token is for job %s, and not for %s", t.Domain, ring.Identity().Domain)
	case ring.IsRevoked(t.Serial):
		return nil, fmt.Errorf("the token %s is revoked", keys.Serial(t.Serial))
	}
	return t, nil
}

// TokenJob is whose keys have signed a token, as it says itself: nobody has checked it.
func TokenJob(text string) (string, error) {
	var said jwt.RegisteredClaims
	if _, _, err := jwt.NewParser().ParseUnverified(text, &said); err != nil {
		return "", errNone
	}
	t, err := of(&said)
	if err != nil {
		return "", err
	}
	return t.Domain, nil
}

var errNone = errors.New("what is shown is no token: perdure keys token makes one")

// signers are the keys of those certificates that may sign others.
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

// of reads what a token says.
func of(said *jwt.RegisteredClaims) (*Token, error) {
	who, err := keys.ParseIdentity(said.Subject)
	if err != nil {
		return nil, fmt.Errorf("the token is for %w", err)
	}
	n, ok := new(big.Int).SetString(said.ID, 16)
	if !ok || n.Sign() <= 0 || said.ExpiresAt == nil {
		return nil, errors.New("the token has no number by which it could be revoked, or no end")
	}
	t := &Token{Identity: who, Serial: n, Until: said.ExpiresAt.Time}
	return t, t.Validate()
}

// explainToken says in words that help why a token is not taken.
func explainToken(said *jwt.RegisteredClaims, err error) error {
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return errNone
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenUnverifiable):
		return errors.New("nobody whom we trust has signed the token: it is another job's, or damaged")
	case errors.Is(err, jwt.ErrTokenExpired) && said.ExpiresAt != nil:
		return fmt.Errorf("the token ran out at %s; perdure keys token makes a new one",
			said.ExpiresAt.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenNotValidYet) && said.NotBefore != nil:
		return fmt.Errorf("the token is good from %s on: do the clocks of both machines agree?",
			said.NotBefore.UTC().Format(time.RFC3339))
	}
	return errors.New("the token is not one for the control API of a job: perdure keys token makes one")
}
