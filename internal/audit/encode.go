package audit

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// Limits of one entry. A larger entry is clipped, never dropped.
const (
	maxEntry     = 64 << 10 // bytes of the JSON of an entry
	clippedText  = 256      // maximum bytes of a string after clipping
	clippedParts = 16       // maximum number of tags, and of pairs in a map, after clipping
)

// redacted replaces a suspected credential.
const redacted = "[redacted]"

// encode returns the fields of e as an audit line stores them: a JSON object without its braces.
// Strings that a caller chose cannot end the line or move a terminal's cursor (law 10). Suspected
// credentials are not stored (law 8).
func encode(e Entry) ([]byte, error) {
	e.Time = e.Time.UTC()
	e = e.mapStrings(redact, math.MaxInt)
	b, err := json.Marshal(e)
	if err == nil && len(b) > maxEntry {
		e = e.mapStrings(clip, clippedParts)
		e.Clipped = true
		b, err = json.Marshal(e)
	}
	if err != nil {
		return nil, err
	}
	return sanitize.JSON(b[1 : len(b)-1]), nil
}

// mapStrings returns e with f applied to every string that a caller can influence. It keeps at most the
// given number of tags and pairs.
func (e Entry) mapStrings(f func(string) string, most int) Entry {
	e.Actor.Login, e.Actor.Node, e.Actor.NodeID = f(e.Actor.Login), f(e.Actor.Node), f(e.Actor.NodeID)
	e.Actor.Tags = mapTexts(e.Actor.Tags, f, most)
	e.RequestID, e.Surface, e.Tool, e.Org, e.Object = f(e.RequestID), f(e.Surface), f(e.Tool), f(e.Org), f(e.Object)
	e.Args, e.Before, e.After = mapPairs(e.Args, f, most), mapPairs(e.Before, f, most), mapPairs(e.After, f, most)
	e.Reason, e.Error = f(e.Reason), f(e.Error)
	return e
}

func mapTexts(in []string, f func(string) string, most int) []string {
	out := slices.Clone(in[:min(len(in), most)])
	for i, s := range out {
		out[i] = f(s)
	}
	return out
}

func mapPairs(in map[string]string, f func(string) string, most int) map[string]string {
	out := make(map[string]string, len(in))
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if len(out) == most {
			break
		}
		out[f(k)] = f(in[k])
	}
	return out
}

func clip(s string) string {
	if len(s) <= clippedText {
		return s
	}
	n := clippedText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// redact removes suspected credentials. The code that writes an entry must not include one, but a
// caller can put one into a path or a reason.
func redact(s string) string {
	const pem = "-----BEGIN "
	if i := strings.Index(s, pem); i >= 0 {
		s = s[:i] + redacted
	}
	for _, mark := range [...]string{"eyJ", "tskey-", "glrt-", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"} {
		for from := 0; ; {
			i := strings.Index(s[from:], mark)
			if i < 0 {
				break
			}
			i += from
			end := i
			for end < len(s) && isTokenByte(s[end]) {
				end++
			}
			if from = i + len(mark); end-i >= 20 {
				s = s[:i] + redacted + s[end:]
				from = i + len(redacted)
			}
		}
	}
	return s
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}
