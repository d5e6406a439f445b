package client

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// ParseSelector parses terms of the forms key=value, key==value, key!=value, key and !key, separated by commas. As in kubectl, all terms must
// match, and key!=value also matches a cluster without the label. The empty text selects every cluster.
func ParseSelector(text string) (labels.Selector, error) {
	if text == "" {
		return labels.Everything(), nil
	}
	operators := []selection.Operator{selection.Equals, selection.DoubleEquals, selection.NotEquals, selection.Exists, selection.DoesNotExist}
	selector := labels.NewSelector()
	for part := range strings.SplitSeq(text, ",") {
		terms, err := labels.ParseToRequirements(part)
		if err != nil || len(strings.Fields(part)) != 1 || !slices.Contains(operators, terms[0].Operator()) {
			return nil, fmt.Errorf("%.80q does not have the form key=value, key!=value, key or !key", part)
		}
		selector = selector.Add(terms...)
	}
	return selector, nil
}
