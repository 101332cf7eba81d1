"""The page belongs to whoever has its token: not to other sites, other names, other users."""

from __future__ import annotations

import pytest

from edl_allreduce.web import guard

OWN = frozenset({"trainer-1"})


def test_the_token_of_the_page_is_not_the_token_of_the_job():
    token = guard.page_token("the job's token")
    assert token == guard.page_token("the job's token") != guard.page_token("another")
    assert "job" not in token and len(token) == 32


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost", "[::1]:80", "10.1.2.3:50002", "trainer-1:80"]
)
def test_names_of_this_machine_are_fine(host):
    assert not guard.strange_host(host, OWN)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:80", "", "127.0.0.1.evil.example", "[::1"]
)
def test_a_domain_that_leads_here_is_not(host):
    assert guard.strange_host(host, OWN)


@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ({"Host": "127.0.0.1:80"}, False),
        ({"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:80", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Host": "127.0.0.1:80", "Origin": "http://evil.example"}, True),
        ({"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:81"}, True),
        ({"Host": "127.0.0.1:80", "Origin": "null"}, True),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Host": "127.0.0.1:80", "Sec-Fetch-Site": "same-site"}, True),
    ],
)
def test_a_browser_says_whether_another_site_is_behind_a_request(headers, elsewhere):
    assert guard.from_elsewhere(headers) is elsewhere


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic secret", "Bearer secret ", "Bearer sécret"]
)
def test_only_the_right_token_counts(given):
    assert guard.knows("secret", {"Authorization": "Bearer secret"})
    assert not guard.knows("secret", {"Authorization": given})
