package multicluster

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// readMembers decodes a document with only jsonMembers and jsonItems.
func readMembers(b []byte) (any, error) {
	switch first := b[skipSpace(b, 0)]; first {
	case '{':
		object := map[string]any{}
		err := jsonMembers("it", b, func(key string, value []byte) error {
			v, err := readMembers(value)
			object[key] = v
			return err
		})
		return object, err
	case '[':
		list := []any{}
		err := jsonItems("it", b[skipSpace(b, 0):], func(item []byte) error {
			v, err := readMembers(item)
			list = append(list, v)
			return err
		})
		return list, err
	}
	var v any
	err := json.Unmarshal(b, &v)
	return v, err
}

// FuzzRead checks that the result equals that of encoding/json, except for duplicate keys.
func FuzzRead(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":"}\\\"]"},null , -1.5e3],"A":{},"\u0061b":true}`, ` [ ] `, `{"a":1,"a":2}`, `"x"`, `[[[]],{}]`, `{"":""}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want any
		if err := json.Unmarshal(b, &want); err != nil { // 1E700 is valid JSON, but not a valid number in Go
			return
		}
		got, err := readMembers(b)
		if err != nil {
			if !strings.Contains(err.Error(), "twice") {
				t.Fatalf("%s: %v", b, err)
			}
			return
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s is read as %v, want %v", b, got, want)
		}
	})
}

func TestTexts(t *testing.T) {
	var m map[string]string
	if err := jsonTextMap("it", []byte(`{"a":"1","b":null}`), &m); err != nil || !reflect.DeepEqual(m, map[string]string{"a": "1", "b": ""}) {
		t.Errorf("%v, %v", m, err)
	}
	for _, s := range []string{`{"a":1}`, `[]`, `"x"`, `{"a":{}}`} {
		if err := jsonTextMap("it", []byte(s), &m); err == nil {
			t.Errorf("%s is read as %v", s, m)
		}
	}
	if err := jsonItems("it", []byte(`{}`), nil); err == nil {
		t.Error("an object is read as a list")
	}
}
