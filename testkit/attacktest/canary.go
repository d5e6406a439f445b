package attacktest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/audittest"
)

// FailureLog is a testing.TB that collects the failures of a check and does not fail its test.
type FailureLog struct {
	testing.TB
	Found []string
}

func (w *FailureLog) Helper() {}

func (w *FailureLog) Errorf(format string, args ...any) {
	w.Found = append(w.Found, fmt.Sprintf(format, args...))
}

// Canary collects all secrets and all output, to find secrets in the output.
type Canary struct {
	T       *testing.T
	Secrets map[string]string // description of the secret, by its text
	Out     map[string]string // output, by its place
	Expect  map[string]string // text that the output of a place must contain
}

// Secret registers a text that must not appear in any output. Texts below 16 bytes are an error: they match by
// chance.
func (c *Canary) Secret(what, text string) {
	c.T.Helper()
	if text = strings.TrimSpace(text); len(text) < 16 {
		c.T.Fatalf("%s is too short to search for", what)
	}
	c.Secrets[text] = what
}

// Put adds output of a place. If want is not empty, the output must contain it; this proves that it is the right
// output.
func (c *Canary) Put(where, text, want string) {
	c.T.Helper()
	c.Out[where] += text
	if want != "" {
		c.Expect[where] = want
	}
}

// Scan searches a text for every secret in any usual encoding, and for anything that looks like an API server token.
func (c *Canary) Scan(where, text string) (found []string) {
	w := &FailureLog{TB: c.T}
	for secret, what := range c.Secrets {
		n := len(w.Found)
		audittest.NoSecret(w, []byte(text), secret)
		if len(w.Found) > n {
			found = append(found, fmt.Sprintf("%s: %s: %s", where, what, w.Found[n]))
		}
	}
	if at := TokenForm.FindStringIndex(text); at != nil {
		found = append(found, fmt.Sprintf("%s: a token: …%q", where, text[max(0, at[0]-80):at[0]+12]))
	}
	return found
}

// keyForm matches private keys as Tailscale writes them.
var keyForm = regexp.MustCompile(`(?:privkey|nlpriv|machine-priv|disco-priv):[0-9a-f]{64}`)

// NodeSecrets registers the private keys in the state directory of a node.
func (c *Canary) NodeSecrets(dir string) {
	c.T.Helper()
	kinds := map[string]int{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		texts := []string{string(b)}
		var state map[string][]byte // values are base64 in the file
		if json.Unmarshal(b, &state) == nil {
			for _, v := range state {
				texts = append(texts, string(v))
			}
		}
		for _, text := range texts {
			for _, key := range keyForm.FindAllString(text, -1) {
				kind, hex, _ := strings.Cut(key, ":")
				if strings.Trim(hex, "0") == "" {
					continue // key is not set
				}
				kinds[kind]++
				c.Secret("a node's "+kind, hex)
			}
		}
		for rest := b; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return nil
			}
			if strings.Contains(block.Type, "PRIVATE KEY") {
				kinds[d.Name()]++
				c.Secret("the key in "+d.Name(), string(block.Bytes))
				lines := strings.Split(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n")
				c.Secret("the text of the key in "+d.Name(), lines[1])
			}
		}
	})
	switch {
	case err != nil:
		c.T.Errorf("the state directory has the keys: %v", err)
	case kinds["privkey"] < 2:
		c.T.Errorf(`the state directory has the keys: kinds["privkey"] = %v, want at least 2`, kinds["privkey"])
	case kinds["audit.key"] != 1:
		c.T.Errorf(`the state directory has the keys: kinds["audit.key"] = %v, want 1`, kinds["audit.key"])
	}
	if !slices.ContainsFunc(mapKeys(kinds), func(k string) bool {
		return strings.HasSuffix(k, ".key") && k != "audit.key" || strings.Contains(k, "crt") || strings.Contains(k, "pem")
	}) {
		c.T.Errorf("the state directory has the keys %v; want the key of the certificate", kinds)
	}
}

func mapKeys(m map[string]int) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
