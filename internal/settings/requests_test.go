package settings

import (
	"strings"
	"testing"
	"time"
)

// REQ-39 and section 1.4 of the specification: defaults, limits and what refuses to start.
func TestREQ39Requests(t *testing.T) {
	for _, x := range []struct {
		name   string
		change func(*File)
		want   string
	}{
		{"the defaults", func(*File) {}, ""},
		{"on", func(f *File) { f.Requests.Enabled = true }, ""},
		{"on without the admission policy", func(f *File) { f.Requests.Enabled, f.Signin.RequireAdmissionPolicy = true, false }, "requireAdmissionPolicy"},
		{"a floor without the admission policy", func(f *File) { f.Requests.Floor, f.Signin.RequireAdmissionPolicy = map[string]int{"edit": 1}, false }, "requireAdmissionPolicy"},
		{"a floor", func(f *File) { f.Requests.Floor = map[string]int{"edit": 2} }, ""},
		{"a floor of 0", func(f *File) { f.Requests.Floor = map[string]int{"edit": 0} }, "requests.floor"},
		{"a floor of 6", func(f *File) { f.Requests.Floor = map[string]int{"edit": 6} }, "requests.floor"},
		{"a floor of another role", func(f *File) { f.Requests.Floor = map[string]int{"admin": 1} }, "signin.roles"},
		{"too long to wait", func(f *File) { f.Requests.PendingFor = Duration(25 * time.Hour) }, "requests.pendingFor"},
		{"too long to use", func(f *File) { f.Requests.UseWithin = Duration(25 * time.Hour) }, "requests.useWithin"},
		{"nobody may ask", func(f *File) { f.Requests.MaxPending = 0 }, "requests.maxPending"},
		{"the capability of standing rules", func(f *File) { f.Requests.Capability = f.Signin.Capability }, "signin.capability"},
		{"one account", func(f *File) { f.Requests.SamePerson = [][]RequestPerson{{{"a@x.example", "1"}}} }, "at least two"},
		{"an account without id", func(f *File) { f.Requests.SamePerson = [][]RequestPerson{{{"a@x.example", "1"}, {"b@x.example", ""}}} }, "userID"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := Default()
			f.Signin.Roles = []string{"view", "edit"}
			x.change(&f)
			var v validation
			f.validateRequests(&v)
			var got string
			for _, err := range v {
				got += err.Error() + "\n"
			}
			if (got == "") != (x.want == "") || !strings.Contains(got, x.want) {
				t.Errorf("got %q, want %q", got, x.want)
			}
		})
	}
}
