import pytest

from gradmesh.protos import ticket as ticket_module
from gradmesh.protos.errors import Retry, TicketRejected, Unreachable
from gradmesh.protos.limits import MAX_NAME_BYTES, MAX_TICKET_BYTES
from gradmesh.protos.ticket import SESSION_BYTES, Ticket, verify

KEY = bytes(range(SESSION_BYTES))
AUDIENCE = ("ps-0", 7)
TICKET = Ticket(AUDIENCE, "client", ("visitor", 9), "client", 1000)


def test_the_audience_reads_what_was_signed():
    assert verify(TICKET.sign(KEY), KEY, AUDIENCE, 999) == TICKET


def test_a_change_of_any_byte_is_noticed():
    data = TICKET.sign(KEY)

    for at in range(len(data)):
        for bit in range(8):
            forged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(TicketRejected):
                verify(forged, KEY, AUDIENCE, 0)


@pytest.mark.parametrize("size", [0, 1, 32, 33, -1])
def test_a_ticket_that_is_cut_off_is_refused(size):
    with pytest.raises(TicketRejected):
        verify(TICKET.sign(KEY)[:size], KEY, AUDIENCE, 0)


@pytest.mark.parametrize(
    ("key", "audience", "now_ms", "why"),
    [
        (bytes(SESSION_BYTES), AUDIENCE, 0, "not signed for this process"),
        (KEY, ("ps-1", 7), 0, "is for 'ps-0'"),
        (KEY, ("ps-0", 8), 0, "is for 'ps-0'"),
        (KEY, AUDIENCE, 1000, "has expired"),
    ],
)
def test_a_ticket_is_for_one_process_and_one_time(key, audience, now_ms, why):
    with pytest.raises(TicketRejected, match=why):
        verify(TICKET.sign(KEY), key, audience, now_ms)


def test_signed_bytes_that_are_no_claims_are_refused():
    claims = b"\xff\xff\xff"
    data = b"\x01" + ticket_module._mac(KEY, claims) + claims

    with pytest.raises(TicketRejected, match="cannot be read"):
        verify(data, KEY, AUDIENCE, 0)


def test_the_longest_names_fit():
    name = "n" * MAX_NAME_BYTES
    longest = Ticket((name, 2**64 - 1), "x" * 16, (name, 2**64 - 1), "x" * 16, 2**64 - 1)
    data = longest.sign(KEY)

    assert len(data) <= MAX_TICKET_BYTES
    assert verify(data, KEY, (name, 2**64 - 1), 0) == longest
    with pytest.raises(TicketRejected):
        verify(data + bytes(MAX_TICKET_BYTES), KEY, (name, 2**64 - 1), 0)


def test_a_rejected_ticket_is_a_call_to_repeat_at_another_process():
    assert issubclass(TicketRejected, Unreachable)
    assert TicketRejected.retry is Retry.CALL
    assert TicketRejected.code == "UNAUTHENTICATED"
