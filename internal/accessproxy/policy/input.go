package policy

import (
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// An Input is one request in the form that rules see. A value that the request does not have is empty.
//
// The attributes are those of Kubernetes' SubjectAccessReview: a request has either resource or non-resource attributes.
type Input struct {
	Resource    Resource
	NonResource NonResource
	Impersonate Impersonate
	Caller      Caller
}

// Resource are the attributes of a request for a resource. Discovery has none.
type Resource struct {
	Verb        string // of Kubernetes, such as list or deletecollection
	Group       string // empty for the core group
	Version     string
	Resource    string // plural, such as pods
	Subresource string // such as exec
	Namespace   string // empty for the whole cluster
	Name        string
}

// NonResource are the attributes of any other request, such as discovery.
type NonResource struct {
	Path string // without query
	Verb string // HTTP method in lower case
}

// Impersonate is the identity in the request's Impersonate headers.
type Impersonate struct {
	User   string
	Groups []string
}

// A Caller is the owner of the request's sign-in, as tailnet and sign-in name it.
type Caller struct {
	Login   string   // empty for a tagged device
	Device  string   // fully qualified name without the trailing dot
	Tags    []string // of a tagged device, such as tag:ci
	Roles   []string // bound by the sign-in
	Session string   // "default" for the default session
	Reason  string   // empty if the login gave none
}

// A variable is a variable of rules.
type variable struct {
	name string
	size int // maximum length of a text in bytes
	list int // maximum number of texts; 0: the variable is one text
	text func(*Input) string
	all  func(*Input) []string
}

// variables returns the variables of rules, in the order that slot numbers. The names are those of Kubernetes'
// structured authorisation (https://kubernetes.io/docs/reference/access-authn-authz/authorization). The limits exceed what
// Kubernetes, the tailnet and sign-ins allow for values that exist. A refused request therefore names something that
// does not exist.
func variables() []variable {
	return []variable{
		{name: "request.resourceAttributes.verb", size: 64, text: func(i *Input) string { return i.Resource.Verb }},
		{name: "request.resourceAttributes.group", size: 253, text: func(i *Input) string { return i.Resource.Group }},
		{name: "request.resourceAttributes.version", size: 63, text: func(i *Input) string { return i.Resource.Version }},
		{name: "request.resourceAttributes.resource", size: 253, text: func(i *Input) string { return i.Resource.Resource }},
		{name: "request.resourceAttributes.subresource", size: 253, text: func(i *Input) string { return i.Resource.Subresource }},
		{name: "request.resourceAttributes.namespace", size: 63, text: func(i *Input) string { return i.Resource.Namespace }},
		{name: "request.resourceAttributes.name", size: 1024, text: func(i *Input) string { return i.Resource.Name }},
		{name: "request.nonResourceAttributes.path", size: 2048, text: func(i *Input) string { return i.NonResource.Path }},
		{name: "request.nonResourceAttributes.verb", size: 64, text: func(i *Input) string { return i.NonResource.Verb }},
		{name: "request.impersonate.user", size: 1024, text: func(i *Input) string { return i.Impersonate.User }},
		{name: "request.impersonate.groups", size: 256, list: 64, all: func(i *Input) []string { return i.Impersonate.Groups }},
		{name: "caller.login", size: 254, text: func(i *Input) string { return i.Caller.Login }},
		{name: "caller.device", size: 253, text: func(i *Input) string { return i.Caller.Device }},
		{name: "caller.tags", size: 128, list: 64, all: func(i *Input) []string { return i.Caller.Tags }},
		{name: "caller.role", size: 2048, text: func(i *Input) string { return strings.Join(i.Caller.Roles, ",") }},
		{name: "caller.roles", size: 253, list: 8, all: func(i *Input) []string { return i.Caller.Roles }},
		{name: "caller.session", size: 63, text: func(i *Input) string { return i.Caller.Session }},
		{name: "caller.reason", size: 2000, text: func(i *Input) string { return i.Caller.Reason }},
	}
}

var table = variables()

// excess returns which value exceeds the limit of its variable, or "".
func (i *Input) excess() string {
	for _, v := range table {
		if v.list == 0 {
			if n := len(v.text(i)); n > v.size {
				return fmt.Sprintf("%s has %d bytes, more than %d", v.name, n, v.size)
			}
			continue
		}
		all := v.all(i)
		if len(all) > v.list {
			return fmt.Sprintf("%s has %d values, more than %d", v.name, len(all), v.list)
		}
		for _, s := range all {
			if len(s) > v.size {
				return fmt.Sprintf("a value of %s has %d bytes, more than %d", v.name, len(s), v.size)
			}
		}
	}
	return ""
}

// An activation gives CEL the variables of an input. It converts each variable once, when a rule first reads it.
type activation struct {
	input  *Input
	values [18]any // by slot; nil: not converted yet
}

// ResolveName implements [cel.Activation].
func (a *activation) ResolveName(name string) (any, bool) {
	i := slot(name)
	if i < 0 {
		return nil, false
	}
	if a.values[i] == nil {
		if v := &table[i]; v.list == 0 {
			a.values[i] = types.String(v.text(a.input))
		} else {
			a.values[i] = types.NewStringList(types.DefaultTypeAdapter, v.all(a.input))
		}
	}
	return a.values[i], true
}

// Parent implements [cel.Activation].
func (a *activation) Parent() cel.Activation { return nil }

// slot returns the place of a variable in the table, or -1. A switch takes half of the time of a map here, and it runs for
// every variable that a rule reads.
func slot(name string) int {
	switch name {
	case "request.resourceAttributes.verb":
		return 0
	case "request.resourceAttributes.group":
		return 1
	case "request.resourceAttributes.version":
		return 2
	case "request.resourceAttributes.resource":
		return 3
	case "request.resourceAttributes.subresource":
		return 4
	case "request.resourceAttributes.namespace":
		return 5
	case "request.resourceAttributes.name":
		return 6
	case "request.nonResourceAttributes.path":
		return 7
	case "request.nonResourceAttributes.verb":
		return 8
	case "request.impersonate.user":
		return 9
	case "request.impersonate.groups":
		return 10
	case "caller.login":
		return 11
	case "caller.device":
		return 12
	case "caller.tags":
		return 13
	case "caller.role":
		return 14
	case "caller.roles":
		return 15
	case "caller.session":
		return 16
	case "caller.reason":
		return 17
	}
	return -1
}
