package settings

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/identity"
)

// OIDCTokens sets whose OIDC tokens the access server accepts beside the tailnet's identity.
type OIDCTokens struct {
	Issuers []OIDCIssuer `yaml:"issuers,omitempty"`
}

// IsZero implements [yaml.IsZeroer].
func (o OIDCTokens) IsZero() bool { return len(o.Issuers) == 0 }

// An OIDCIssuer is an issuer of tokens. Its keys come from these settings, never from a token.
type OIDCIssuer struct {
	URL      string `yaml:"url"`                // as in the claim iss
	KeysURL  string `yaml:"keysURL,omitempty"`  // of its JSON Web Key Set; https, or http on the loopback interface
	KeysFile string `yaml:"keysFile,omitempty"` // instead of keysURL
	Audience string `yaml:"audience,omitempty"` // the only accepted one; "": cluster.name, unless a rule names another
}

// maxIssuers is the maximum number of issuers.
const maxIssuers = 16

func (o OIDCTokens) validate(v *validation) {
	v.failIf(len(o.Issuers) > maxIssuers, "signin.oidc.issuers: %d entries, more than %d", len(o.Issuers), maxIssuers)
	for i, issuer := range o.Issuers {
		err := issuer.Token().Check()
		v.failIf(err != nil, "signin.oidc.issuers: entry %d: %w", i+1, err)
		v.failIf(len(issuer.URL) > 253 || len(issuer.Audience) > 253, "signin.oidc.issuers: entry %d: url or audience has more than 253 bytes", i+1)
		v.failIf(strings.ContainsFunc(issuer.Audience, func(r rune) bool { return r <= ' ' || r > '~' }), "signin.oidc.issuers: entry %d: audience: %q contains white space", i+1, issuer.Audience)
		v.failIf(slices.ContainsFunc(o.Issuers[:i], func(other OIDCIssuer) bool { return other.URL == issuer.URL }), "signin.oidc.issuers: %q is listed twice", issuer.URL)
	}
}

// Token returns the issuer for a verifier of tokens.
func (i OIDCIssuer) Token() identity.TokenIssuer {
	return identity.TokenIssuer{URL: i.URL, KeysURL: i.KeysURL, KeysFile: i.KeysFile, Audience: i.Audience}
}

// audiences returns the audience of the tokens of each issuer, where a rule names none.
func (o OIDCTokens) audiences(cluster string) map[string]string {
	all := map[string]string{}
	for _, i := range o.Issuers {
		all[i.URL] = cmp.Or(i.Audience, cluster)
	}
	return all
}
