package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha512" // for the algorithms of 384 and 512 bits
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// Limits of the tokens that a TokenVerifier accepts.
const (
	maxSubject   = 1024           // bytes
	maxTokenID   = 253            // bytes
	maxTokenLife = 24 * time.Hour // from now to the claim exp; used tokens are remembered that long
)

// A TokenIssuer is an OIDC issuer whose tokens a server accepts beside the tailnet's identity.
type TokenIssuer struct {
	URL      string // as in the claim iss
	KeysURL  string // of its JSON Web Key Set; https, or http on the loopback interface
	KeysFile string // instead of KeysURL
	Audience string // the only accepted one; "": the rules of the policy decide
}

// Check returns an error if the issuer is invalid.
func (i TokenIssuer) Check() error {
	u, err := url.Parse(i.URL)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("url: %q is not a plain URL", i.URL)
	case (i.KeysURL == "") == (i.KeysFile == ""):
		return errors.New("one of keysURL and keysFile must be set: the keys' address is never taken from a token")
	case i.KeysURL == "":
		return nil
	}
	switch u, err = url.Parse(i.KeysURL); {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
		return fmt.Errorf("keysURL: %q is not a URL", i.KeysURL)
	case u.Scheme != "https" && !(u.Scheme == "http" && isLocalHost(u.Hostname())):
		return fmt.Errorf("keysURL: the keys at %q are not protected in transit; use https", i.KeysURL)
	}
	return nil
}

// A TokenVerifier verifies tokens that callers send beside their tailnet identity. A token alone never
// identifies a caller.
type TokenVerifier struct {
	issuers map[string]issuerKeys // by URL
	now     func() time.Time
}

type issuerKeys struct {
	TokenIssuer
	keys *keys
}

// NewTokenVerifier returns a verifier for tokens of the issuers. It reads the files of keys once, so that
// a file without keys is an error at the start. It makes no request. The client's redirect policy has no
// effect: redirects are not followed.
func NewTokenVerifier(issuers []TokenIssuer, client *http.Client, now func() time.Time) (*TokenVerifier, error) {
	v := &TokenVerifier{issuers: map[string]issuerKeys{}, now: now}
	client = withoutRedirects(client)
	for _, i := range issuers {
		if err := i.Check(); err != nil {
			return nil, fmt.Errorf("the issuer %q: %w", i.URL, err)
		}
		load := func(ctx context.Context) (map[string]verificationKey, error) {
			var set keySet
			if err := getJSON(ctx, client, i.KeysURL, &set); err != nil {
				return nil, err
			}
			return set.byID(tokenKey)
		}
		if i.KeysFile != "" {
			load = func(context.Context) (map[string]verificationKey, error) { return readKeys(i.KeysFile) }
			if _, err := load(context.Background()); err != nil {
				return nil, fmt.Errorf("the issuer %q: %w", i.URL, err)
			}
		}
		v.issuers[i.URL] = issuerKeys{i, newKeys(load, now)}
	}
	return v, nil
}

// readKeys reads a JSON Web Key Set from a file.
func readKeys(path string) (map[string]verificationKey, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var set keySet
	if err := json.Unmarshal(b, &set); err != nil || len(b) > maxAnswer {
		return nil, fmt.Errorf("%s is not a JSON Web Key Set of at most %d bytes", path, maxAnswer)
	}
	keys, err := set.byID(tokenKey)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// tokenAlgorithms are the signature algorithms that a TokenVerifier accepts. None of them has a shared key.
var tokenAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// tokenKey returns a key and its ID, or nil for a key that cannot verify a token.
func tokenKey(raw []byte) (string, *verificationKey) {
	var j jose.JSONWebKey
	if err := j.UnmarshalJSON(raw); err != nil || j.KeyID == "" || j.Use != "" && j.Use != "sig" {
		return "", nil
	}
	var algorithms []jose.SignatureAlgorithm
	switch key := j.Key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSA && key.N.BitLen() <= maxRSA && key.E >= 3 && key.E%2 == 1 {
			algorithms = tokenAlgorithms[:3]
		}
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			algorithms = []jose.SignatureAlgorithm{jose.ES256}
		case elliptic.P384():
			algorithms = []jose.SignatureAlgorithm{jose.ES384}
		case elliptic.P521():
			algorithms = []jose.SignatureAlgorithm{jose.ES512}
		}
	case ed25519.PublicKey:
		algorithms = []jose.SignatureAlgorithm{jose.EdDSA}
	}
	if j.Algorithm != "" {
		algorithms = slices.DeleteFunc(slices.Clone(algorithms), func(a jose.SignatureAlgorithm) bool { return string(a) != j.Algorithm })
	}
	if len(algorithms) == 0 {
		return "", nil
	}
	return j.KeyID, &verificationKey{j.Key, algorithms}
}

// Verify returns the token that raw is. A refusal has the code token_refused and says what is wrong, without
// any text of the token; if the keys cannot be had, the code is identity_unavailable.
func (v *TokenVerifier) Verify(ctx context.Context, raw string) (access.Token, error) {
	t, err := v.verify(ctx, raw)
	switch {
	case err == nil, problem.CodeOf(err) == problem.IdentityUnavailable:
		return t, err
	}
	return access.Token{}, problem.New(problem.TokenRefused, fmt.Sprintf("The OIDC token is not valid here: %v.", err),
		"Get a new token for this server, and check its issuer and audience.")
}

func (v *TokenVerifier) verify(ctx context.Context, raw string) (t access.Token, err error) {
	if len(raw) > maxToken {
		return t, fmt.Errorf("it has %d bytes, more than %d", len(raw), maxToken)
	}
	parsed, err := jwt.ParseSigned(raw, tokenAlgorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return t, errors.New("it is not a JSON Web Token with one signature of an accepted algorithm")
	}
	head := parsed.Headers[0]
	if typ, there := head.ExtraHeaders[jose.HeaderType]; there && typ != "JWT" {
		return t, errors.New("its type is not JWT")
	}
	var named struct {
		Issuer string `json:"iss"`
	}
	if err := parsed.UnsafeClaimsWithoutVerification(&named); err != nil { // it only selects the keys
		return t, errors.New("its claims cannot be read")
	}
	issuer, known := v.issuers[named.Issuer]
	if !known {
		return t, errors.New("this server does not accept its issuer")
	}
	key, err := issuer.keys.find(ctx, head.KeyID)
	switch {
	case problem.CodeOf(err) == problem.IdentityUnavailable:
		return t, err
	case err != nil, !slices.Contains(key.algorithms, jose.SignatureAlgorithm(head.Algorithm)):
		return t, errors.New("its issuer has no such key")
	}
	var c jwt.Claims
	var all map[string]any
	if err := parsed.Claims(key.public, &c, &all); err != nil {
		return t, errors.New("its signature is wrong, or its claims cannot be read")
	}
	return issuer.tokenOf(c, all, v.now())
}

// tokenOf checks the claims of a token whose signature is right.
func (i issuerKeys) tokenOf(c jwt.Claims, all map[string]any, now time.Time) (t access.Token, err error) {
	switch {
	case c.Issuer != i.URL:
		return t, errors.New("this server does not accept its issuer")
	case len(c.Audience) != 1 || c.Audience[0] == "":
		return t, errors.New("it does not have exactly one audience")
	case i.Audience != "" && c.Audience[0] != i.Audience:
		return t, fmt.Errorf("its audience is not %q", i.Audience)
	case c.Expiry == nil || c.IssuedAt == nil:
		return t, errors.New("one of the claims exp and iat is missing")
	case !now.Before(c.Expiry.Time().Add(skew)):
		return t, errors.New("it has expired")
	case c.Expiry.Time().Sub(now) > maxTokenLife:
		return t, fmt.Errorf("it is valid for more than %v", maxTokenLife)
	case now.Add(skew).Before(c.IssuedAt.Time()), c.NotBefore != nil && now.Add(skew).Before(c.NotBefore.Time()):
		return t, errors.New("it is not valid yet")
	case !isPlain(c.Subject, maxSubject):
		return t, fmt.Errorf("its claim sub is missing, longer than %d bytes or not printable", maxSubject)
	case !isPlain(c.ID, maxTokenID):
		return t, fmt.Errorf("its claim jti is missing, longer than %d bytes or not printable", maxTokenID)
	}
	t = access.Token{
		Issuer:   c.Issuer,
		Subject:  c.Subject,
		Audience: c.Audience[0],
		ID:       c.ID,
		Expires:  c.Expiry.Time().Add(skew),
		Claims:   map[string]string{},
	}
	for name, value := range all {
		if text, ok := value.(string); ok {
			t.Claims[name] = text
		}
	}
	return t, nil
}

// isPlain reports whether s has 1 to limit bytes, all of printable characters.
func isPlain(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
