package access

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// Limits of the token that a rule requires.
const (
	maxClaims    = 16
	maxClaimText = 253 // bytes of a name or a value

	maxClaimValue = 1024 // bytes of a value in a token, as in TkaSignin
)

var (
	claimNameForm = regexp.MustCompile(`^[!-~]+$`)
	issuerForm    = regexp.MustCompile(`^https?://[!-~]+$`)
)

// A Token is a verified OIDC token that a caller sent beside its tailnet identity. It says which job or
// which person uses the device.
type Token struct {
	Issuer   string
	Subject  string
	Audience string
	ID       string // of this token, from the claim jti; "" in a stored sign-in
	Expires  time.Time
	Claims   map[string]string // the claims that are strings; of a stored sign-in those that its rule required
}

// A TokenRule is the OIDC token that a rule requires. The texts must be equal, byte for byte, except that
// a "*" at the end of the claim "ref" stands for any text.
type TokenRule struct {
	Issuer   string
	Audience string            // "": the audience of the server for this issuer, from [Policy]
	Claims   map[string]string // at least one
}

// mismatch returns what of t differs from the rule, such as `the claim "ref" is not "refs/heads/*"`, or "".
// It never contains a text of the token.
func (pol Policy) mismatch(r TokenRule, t Token) string {
	audience, known := pol.Issuers[r.Issuer]
	if r.Audience != "" {
		audience = r.Audience
	}
	switch {
	case !known:
		return fmt.Sprintf("this server does not accept tokens of %s", r.Issuer)
	case t.Issuer != r.Issuer:
		return fmt.Sprintf("the issuer is not %q", r.Issuer)
	case t.Audience != audience || audience == "":
		return fmt.Sprintf("the audience is not %q", audience)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Claims)) {
		want := r.Claims[name]
		have, there := t.Claims[name]
		prefix, isPrefix := strings.CutSuffix(want, "*")
		switch {
		case !there:
			return fmt.Sprintf("it has no claim %q, or it is not a string", name)
		case isPrefix && strings.HasPrefix(have, prefix) && len(have) <= maxClaimValue, have == want:
		default:
			return fmt.Sprintf("the claim %q is not %q", name, want)
		}
	}
	return ""
}

func (r *TokenRule) equal(o *TokenRule) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.Issuer == o.Issuer && r.Audience == o.Audience && maps.Equal(r.Claims, o.Claims)
}

// decodeTokenRule decodes the value of "oidc", whose first token is value.
func decodeTokenRule(value json.Token, d *json.Decoder) (*TokenRule, error) {
	if value != json.Delim('{') {
		return nil, fmt.Errorf("not an object")
	}
	var r TokenRule
	err := eachFieldOf(d, func(field string, value json.Token, d *json.Decoder) (err error) {
		text, _ := value.(string)
		switch field {
		case "issuer":
			if r.Issuer = text; len(text) > maxClaimText || !issuerForm.MatchString(text) {
				return fmt.Errorf(`"issuer" is not a URL such as "https://token.actions.githubusercontent.com"`)
			}
		case "audience":
			if r.Audience = text; len(text) > maxClaimText || !claimNameForm.MatchString(text) {
				return fmt.Errorf(`"audience" is not a text of 1 to %d visible characters`, maxClaimText)
			}
		case "claims":
			if r.Claims, err = decodeClaims(value, d); err != nil {
				return fmt.Errorf(`"claims": %w`, err)
			}
		default:
			return fmt.Errorf("%.60q is not a field of it", field)
		}
		return nil
	}, "issuer", "claims")
	return &r, err
}

// reservedClaims are checked by the server itself, or have a field of their own in a rule.
var reservedClaims = []string{"iss", "aud", "exp", "nbf", "iat", "jti"}

// decodeClaims decodes an object of strings whose first token is value.
func decodeClaims(value json.Token, d *json.Decoder) (map[string]string, error) {
	if value != json.Delim('{') {
		return nil, fmt.Errorf("not an object")
	}
	claims := map[string]string{}
	err := eachFieldOf(d, func(name string, value json.Token, _ *json.Decoder) error {
		text, isText := value.(string)
		before, isPrefix := strings.CutSuffix(text, "*")
		switch {
		case len(name) > maxClaimText || !claimNameForm.MatchString(name):
			return fmt.Errorf("%.60q is not the name of a claim", name)
		case slices.Contains(reservedClaims, name):
			return fmt.Errorf("%q is not a claim for rules: the server checks it", name)
		case !isText || text == "" || len(text) > maxClaimText:
			return fmt.Errorf("%q is not a string of 1 to %d bytes", name, maxClaimText)
		case strings.Contains(before, "*") || isPrefix && (name != "ref" || before == ""):
			return fmt.Errorf(`%q has a "*"; it is possible only in "ref", at the end of a text`, name)
		}
		claims[name] = text
		return nil
	})
	if err == nil && (len(claims) == 0 || len(claims) > maxClaims) {
		err = fmt.Errorf("%d claims; a rule has 1 to %d", len(claims), maxClaims)
	}
	return claims, err
}

// WithToken returns p for a caller that sent the token.
func (p Permit) WithToken(t Token) Permit {
	p.token = &t
	return p
}

// Token returns the token that the caller sent, or nil.
func (p Permit) Token() *Token { return p.token }

// Claims returns the claims of the token that the chosen rule required, with the values of the token.
func (p Permit) Claims() map[string]string { return p.claims }

// fitting returns the grants that the token fits, and those that require none.
func (p Permit) fitting() []Grant {
	return slices.DeleteFunc(slices.Clone(p.grants), func(g Grant) bool { return !p.policy.fits(g, p.token) })
}

// fits reports whether the grant requires no token, or t is one that it requires.
func (pol Policy) fits(g Grant, t *Token) bool {
	return g.Token == nil || t != nil && pol.mismatch(*g.Token, *t) == ""
}

// claimsFor returns the claims of the token to store for the chosen grant: those that it requires, and
// as many as possible of those that the other grants require that the token fits. If one of several such
// rules is removed from the policy, the others still cover the sign-in.
func (p Permit) claimsFor(chosen Grant) map[string]string {
	if p.token == nil {
		return nil
	}
	claims := map[string]string{}
	for _, g := range append([]Grant{chosen}, p.fitting()...) {
		if g.Token == nil {
			continue
		}
		more := maps.Clone(claims)
		for name := range g.Token.Claims {
			more[name] = p.token.Claims[name]
		}
		if len(more) <= maxClaims {
			claims = more
		}
	}
	return claims
}

// withoutTwins removes each grant that differs from an earlier one only in the token that it requires.
func withoutTwins(grants []Grant) (out []Grant) {
	for _, g := range grants {
		if !slices.ContainsFunc(out, func(o Grant) bool { o.Token = g.Token; return o.same(g) }) {
			out = append(out, g)
		}
	}
	return out
}

// maxMismatches is the number of rules that a refusal of a token explains.
const maxMismatches = 3

// tokenRefusal returns why none of the grants, which all require a token, can be used.
func (p Permit) tokenRefusal(grants []Grant) error {
	if p.token == nil {
		g := grants[0]
		return problem.New(problem.TokenRequired, fmt.Sprintf("The rule %q requires an OIDC token of %s beside the tailnet's identity.", g.choice(), g.Token.Issuer),
			"In a job on GitHub: give the job the permission id-token: write. tka then gets the token itself.",
			"In a job on GitLab: set id_tokens: {TKA_OIDC_TOKEN: {aud: AUDIENCE}}. Elsewhere: --oidc-token-env NAME")
	}
	var why []string
	for _, g := range grants[:min(len(grants), maxMismatches)] {
		why = append(why, fmt.Sprintf("rule %q: %s", g.choice(), p.policy.mismatch(*g.Token, *p.token)))
	}
	return problem.New(problem.TokenRefused, fmt.Sprintf("The token does not fit (%s).", strings.Join(why, "; ")),
		"Run the job on the repository, the branch and the environment that the rule names, or ask for a rule.")
}
