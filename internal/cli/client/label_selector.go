package client

import (
	"fmt"
	"regexp"
	"strings"
)

// A Selector selects clusters by their labels, like kubectl's -l: all of its terms must match. The zero Selector selects every cluster.
type Selector []selectorTerm

type selectorTerm struct {
	key, value string
	any        bool // matches any value
	not        bool
}

// The syntax of labels. Lengths are checked separately, because counted repetition makes an expression large, and tka must start fast.
var (
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	labelValue  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

func isLabelValue(s string) bool { return len(s) <= 63 && labelValue.MatchString(s) }

func isLabelKey(s string) bool {
	prefix, name, ok := strings.Cut(s, "/")
	if !ok {
		return isLabelValue(s)
	}
	return len(prefix) <= 253 && labelPrefix.MatchString(prefix) && isLabelValue(name)
}

// ParseSelector parses terms of the forms key=value, key==value, key!=value, key and !key, separated by commas. The empty text gives the
// zero Selector.
func ParseSelector(text string) (Selector, error) {
	if text == "" {
		return nil, nil
	}
	var s Selector
	for part := range strings.SplitSeq(text, ",") {
		t := selectorTerm{key: strings.TrimSpace(part)}
		if key, value, ok := strings.Cut(t.key, "!="); ok {
			t = selectorTerm{key: key, value: value, not: true}
		} else if key, value, ok := strings.Cut(t.key, "="); ok {
			t = selectorTerm{key: key, value: strings.TrimPrefix(value, "=")}
		} else if key, ok := strings.CutPrefix(t.key, "!"); ok {
			t = selectorTerm{key: key, any: true, not: true}
		} else {
			t.any = true
		}
		if !isLabelKey(t.key) || t.value != "" && !isLabelValue(t.value) {
			return nil, fmt.Errorf("%.80q does not have the form key=value, key!=value, key or !key", part)
		}
		s = append(s, t)
	}
	return s, nil
}

// Matches reports whether s selects a cluster with these labels. As in kubectl, key!=value also matches a cluster without the label.
func (s Selector) Matches(labels map[string]string) bool {
	for _, t := range s {
		value, there := labels[t.key]
		if holds := there && (t.any || value == t.value); holds == t.not {
			return false
		}
	}
	return true
}
