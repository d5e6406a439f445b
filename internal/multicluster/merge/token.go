package merge

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// continueToken is the position of a client in the pages of a merged list.
type continueToken struct {
	Vector Vector
	Slot   int    // of the current cluster
	Inner  string // the cluster's own continue token; "" before its first page
	// Inconsistent lets a cluster with an expired position restart at its most recent one.
	Inconsistent bool
}

type tokenJSON struct {
	Version      string `json:"v"`
	RV           string `json:"rv"`
	Hash         string `json:"h"`
	Slot         int    `json:"c"`
	Inner        string `json:"k"`
	Inconsistent bool   `json:"i"`
}

const tokenVersion = "mca/1"

// CollectionHash binds a token to a collection. It returns 16 hexadecimal digits of a hash of the list's path
// and selectors.
func CollectionHash(path, labelSelector, fieldSelector string) string {
	h := sha256.New()
	for _, s := range []string{path, labelSelector, fieldSelector} {
		h.Write([]byte(s))
		h.Write([]byte{0}) // a separator that occurs in none of them
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// Encode encodes the token for the collection with that hash.
func (t continueToken) Encode(hash string) string {
	b, err := json.Marshal(tokenJSON{tokenVersion, t.Vector.String(), hash, t.Slot, t.Inner, t.Inconsistent})
	if err != nil {
		panic("a token of strings and numbers: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeToken decodes a token. It returns a 400 for a malformed token or one of another collection. It
// returns a 410 for a token of an older epoch, or of a single cluster. It returns a 504 for a token of a
// newer epoch.
func decodeToken(s, hash string, epoch uint64) (continueToken, *codec.Status) {
	var t tokenJSON
	b, version := tokenVersionOf(s)
	if version == "meta.k8s.io/v1" {
		return continueToken{}, expiredStatus("the continue token is from one cluster, but several clusters have the collection now")
	}
	if version != tokenVersion || json.Unmarshal(b, &t) != nil {
		return continueToken{}, badRequestStatus("continue key is not valid")
	}
	rv, bad := ParseResourceVersion(t.RV)
	if bad != nil || rv.Vector == nil || t.Slot < 0 || t.Slot >= len(rv.Vector.Fields) {
		return continueToken{}, badRequestStatus("continue key is not valid")
	}
	if t.Hash != hash {
		return continueToken{}, badRequestStatus("continue key is not valid for this collection")
	}
	switch e := rv.Vector.Epoch; {
	case e < epoch:
		return continueToken{}, expiredStatus("the continue token is too old: the clusters changed since then")
	case e > epoch:
		return continueToken{}, newerEpochStatus(e, epoch)
	}
	return continueToken{*rv.Vector, t.Slot, t.Inner, t.Inconsistent}, nil
}

// isToken reports whether s is the continue token of a merged list. Such a token must never reach a cluster.
func isToken(s string) bool {
	_, version := tokenVersionOf(s)
	return version == tokenVersion
}

// tokenVersionOf decodes a token and returns its version, which shows which kind of server issued it.
func tokenVersionOf(s string) (b []byte, version string) {
	var t struct {
		Version string `json:"v"`
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || json.Unmarshal(b, &t) != nil {
		return nil, ""
	}
	return b, t.Version
}
