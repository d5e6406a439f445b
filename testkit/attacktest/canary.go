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

// A Witness counts what a check finds, instead of failing its test.
type Witness struct {
	testing.TB
	Found []string
}

func (w *Witness) Helper() {}

func (w *Witness) Errorf(format string, args ...any) {
	w.Found = append(w.Found, fmt.Sprintf(format, args...))
}

// A Canary is everything secret, and everything that was put out.
type Canary struct {
	T       *testing.T
	Secrets map[string]string // what it is, by the text
	Out     map[string]string // text, by where
	Expect  map[string]string // what a text must have to be what it should be
}

// Secret notes something that must not be seen. Short texts are none: they would
// be found by chance.
func (c *Canary) Secret(what, text string) {
	c.T.Helper()
	if text = strings.TrimSpace(text); len(text) < 16 {
		c.T.Fatalf("%s is too short to look for", what)
	}
	c.Secrets[text] = what
}

// Put notes what came out somewhere. With want in it, it is what it should be.
func (c *Canary) Put(where, text, want string) {
	c.T.Helper()
	c.Out[where] += text
	if want != "" {
		c.Expect[where] = want
	}
}

// Scan looks for every secret in a text, in any usual spelling, and for what looks
// like a token of anybody.
func (c *Canary) Scan(where, text string) (found []string) {
	w := &Witness{TB: c.T}
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

// keyForm is how Tailscale writes private keys.
var keyForm = regexp.MustCompile(`(?:privkey|nlpriv|machine-priv|disco-priv):[0-9a-f]{64}`)

// NodeSecrets notes the private keys in the state folder of a node.
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
					continue // one that is not set
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
	if err != nil || kinds["privkey"] < 2 || kinds["audit.key"] != 1 {
		c.T.Errorf("the state folder holds the keys %v (%v); those of the node and of the record are wanted", kinds, err)
	}
	if !slices.ContainsFunc(mapKeys(kinds), func(k string) bool {
		return strings.HasSuffix(k, ".key") && k != "audit.key" || strings.Contains(k, "crt") || strings.Contains(k, "pem")
	}) {
		c.T.Errorf("the state folder holds the keys %v; that of the certificate is wanted", kinds)
	}
}

func mapKeys(m map[string]int) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
