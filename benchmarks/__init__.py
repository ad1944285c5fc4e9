"""Named speed cases, measured beside the sgemm floor and the field's libraries."""
