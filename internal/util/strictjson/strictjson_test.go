package strictjson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/util/strictjson"
)

func whole(text string) error {
	c := strictjson.New([]byte(text))
	if err := c.Skip(); err != nil {
		return err
	}
	return c.End()
}

func TestWhatIsTaken(t *testing.T) {
	for _, tt := range []struct {
		text string
		good bool
		why  string
	}{
		{`{"a":1,"b":[true,null,"x",-1.5e3]}`, true, "any value"},
		{` [ ] `, true, "white space around"},
		{`{"a":1,"a":2}`, false, "a name twice"},
		{`{"a":1,"\u0061":2}`, false, "a name twice, once escaped"},
		{`{"a":1,"A":2}`, true, "two names"},
		{`[[[[1]]]]`, true, "as deep as may be"},
		{`[[[[[1]]]]]`, false, "deeper"},
		{`{"a":1}{}`, false, "something after it"},
		{`{"a":1,}`, false, "a comma too many"},
		{`{"a" 1}`, false, "no colon"},
		{`{a:1}`, false, "a bare name"},
		{"\"a\nb\"", false, "a line's end in a string"},
		{`"\x"`, false, "an invalid escape"},
		{`tru`, false, "half a word"},
		{`01`, false, "a zero in front"},
		{``, false, "nothing"},
	} {
		if err := whole(tt.text); (err == nil) != tt.good {
			t.Errorf("%s: %s: %v", tt.why, tt.text, err)
		}
	}
	var names strings.Builder // more names than the linear search covers
	for i := range 200 {
		names.WriteString(`"n` + strings.Repeat("x", i) + `":1,`)
	}
	if err := whole(`{` + names.String() + `"last":1}`); err != nil {
		t.Errorf("200 names: %v", err)
	}
	if whole(`{`+names.String()+`"nxxx":1}`) == nil {
		t.Error("one of 200 names occurs twice, and is accepted")
	}
}

func TestUnmarshalKnown(t *testing.T) {
	for _, tt := range []struct {
		text string
		good bool
		why  string
	}{
		{`{"a":1}`, true, "a known field"},
		{" {} \n", true, "white space around"},
		{`{"a":1,"b":2}`, false, "an unknown field"},
		{`{"a":"x"}`, false, "another type"},
		{`{"a":1}{"a":2}`, false, "two values"},
		{`{"a":1}]`, false, "a bracket after it"},
		{`{"a":1`, false, "cut off"},
		{``, false, "nothing"},
	} {
		var v struct {
			A int `json:"a"`
		}
		if err := strictjson.UnmarshalKnown([]byte(tt.text), &v); (err == nil) != tt.good {
			t.Errorf("%s: %s: %v", tt.why, tt.text, err)
		}
	}
}

func TestCount(t *testing.T) {
	for text, good := range map[string]bool{"0": true, "41": true, "42": true, "43": false, "-1": false, "1.0": false, "1e1": false, "007": false, `"1"`: false, "18446744073709551617": false} {
		c := strictjson.New([]byte(text))
		n, err := c.Count(42)
		if err == nil {
			err = c.End()
		}
		if (err == nil) != good || n > 42 {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
}

// row reads a row without the fast path: leading white space makes it not compact.
func row(text string, limits [3]uint64) (string, [3]uint64, error) {
	c := strictjson.New([]byte(" " + text))
	name, counts, err := c.Row(limits)
	return string(name), counts, errors.Join(err, c.End())
}

// FuzzRow: input that the fast path accepts is JSON, and the slow path returns the same result (DSC-13).
func FuzzRow(f *testing.F) {
	for _, text := range []string{`["nA",1,2,3]`, `["nA",1,2,3`, `["nA",1,2]`, `["nA",1,2,3,{"a":[]}]`, `["nA",,2,3]`, `["nA",01,2,3]`, `["nA",0,0,0]x`, `["n\u0041",1,2,3]`,
		`["nA", 1,2,3]`, `["nA",1,2,1e3]`, `["nA",1,-2,3]`, `["nA",1,2,9007199254740992]`, `["nA",99999999999999999999999,2,3]`, `["é",1,2,3]`, `[""`, `["`, `[`, ``, `["nA"`, `["nA",`, `["nA",1`} {
		f.Add(text)
	}
	limits := [3]uint64{1<<53 - 1, 1<<53 - 1, 1<<31 - 1}
	f.Fuzz(func(t *testing.T, text string) {
		c := strictjson.New([]byte(text))
		name, counts, err := c.Row(limits)
		err = errors.Join(err, c.End())
		want, wants, slow := row(text, limits)
		if (err == nil) != (slow == nil) || err == nil && (string(name) != want || counts != wants || !json.Valid([]byte(text))) {
			t.Errorf("%q is read as %q %v (%v), and in the slow way as %q %v (%v)", text, name, counts, err, want, wants, slow)
		}
	})
}

// FuzzSkip: accepted input is JSON, and nothing panics (DSC-13).
func FuzzSkip(f *testing.F) {
	for _, text := range []string{`{"a":[1,"\u00e9",null]}`, `[[[[0]]]]`, `{"a":1,"a":2}`, "\"\x80\"", `"\ud800"`, `-0.1e+9`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if whole(string(b)) == nil && !json.Valid(b) {
			t.Errorf("%q is accepted, but is not JSON", b)
		}
	})
}
